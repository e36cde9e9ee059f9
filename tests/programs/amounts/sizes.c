/*
 * A known mix of sizes from two threads: many small blocks, some of a few KiB, few large ones; every second block of
 * each kind is freed. After "mixed" all remaining blocks are freed, followed by "done".
 */
#include <pthread.h>
#include "../handshake.h"
#include "../keep.h"

#define SMALL 40000
#define MIDDLE 2000
#define LARGE 40

struct blocks {
	void *small[SMALL / 2], *middle[MIDDLE / 2], *large[LARGE / 2];
};

static struct blocks of_thread[2];
static pthread_barrier_t phase;

#define KIND(name, count, size)                                          \
	NOINLINE static void *allocate_##name(size_t bytes)              \
	{                                                                \
		void *block = malloc(bytes);                             \
                                                                         \
		kept = block;                                            \
		return block;                                            \
	}                                                                \
                                                                         \
	NOINLINE static void fill_##name(struct blocks *blocks)          \
	{                                                                \
		for (long number = 0; number < (count); number++) {      \
			void *block = allocate_##name(size);             \
                                                                         \
			/* Without it, a compiler makes one call for odd numbers and one for even ones. */ \
			asm volatile("" : "+r"(number));                 \
			if (number % 2)                                  \
				free(block);                             \
			else                                             \
				blocks->name[number / 2] = block;        \
		}                                                        \
	}                                                                \
                                                                         \
	NOINLINE static void empty_##name(struct blocks *blocks)         \
	{                                                                \
		for (long number = 0; number < (count) / 2; number++)    \
			free(blocks->name[number]);                      \
	}

KIND(small, SMALL, 16 + number % 64)
KIND(middle, MIDDLE, 1000 + number)
KIND(large, LARGE, 262144)

static void *thread_main(void *blocks)
{
	pthread_barrier_wait(&phase);
	fill_small(blocks);
	fill_middle(blocks);
	fill_large(blocks);
	pthread_barrier_wait(&phase);
	pthread_barrier_wait(&phase);
	empty_small(blocks);
	empty_middle(blocks);
	empty_large(blocks);
	pthread_barrier_wait(&phase);
	/* When a thread ends, it frees the blocks in its cache once more. */
	pthread_barrier_wait(&phase);
	return NULL;
}

int main(void)
{
	pthread_t threads[2];

	pthread_barrier_init(&phase, NULL, 3);
	for (int thread = 0; thread < 2; thread++)
		pthread_create(&threads[thread], NULL, thread_main, &of_thread[thread]);
	rendezvous("ready");
	pthread_barrier_wait(&phase);
	pthread_barrier_wait(&phase);
	rendezvous("mixed");
	pthread_barrier_wait(&phase);
	pthread_barrier_wait(&phase);
	rendezvous("done");
	pthread_barrier_wait(&phase);
	for (int thread = 0; thread < 2; thread++)
		pthread_join(threads[thread], NULL);
	return 0;
}
