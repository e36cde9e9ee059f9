/* Defines an allocator whose functions, at the first call of a thread, prepare its cache and then start over by a jump,
 * as those of glibc do from 2.42 on. */
#include <pthread.h>
#include "../handshake.h"
#include "../keep.h"

static char pool[1 << 16] __attribute__((aligned(16)));
static size_t used;
static __thread int has_cache_to_allocate;
static __thread int has_cache_to_free;

void *malloc(size_t size);
void free(void *block);

NOINLINE static void *malloc_prepared(size_t size)
{
	has_cache_to_allocate = 1;
	return malloc(size);
}

NOINLINE static void free_prepared(void *block)
{
	has_cache_to_free = 1;
	free(block);
}

NOINLINE void *malloc(size_t size)
{
	if (!has_cache_to_allocate)
		return malloc_prepared(size);
	return pool + __atomic_fetch_add(&used, (size + 15) / 16 * 16, __ATOMIC_RELAXED);
}

NOINLINE void free(void *block)
{
	if (!has_cache_to_free)
		return free_prepared(block);
	if (block)
		*(volatile char *)block = 0;
}

NOINLINE static void leaky(void)
{
	kept = malloc(100);
}

NOINLINE static void passing(void)
{
	free(kept = malloc(50));
}

NOINLINE static void *given(void)
{
	return kept = malloc(30);
}

/* The thread's first call of the allocator is a free. */
NOINLINE static void *in_thread(void *block)
{
	free(block);
	leaky();
	passing();
	passing();
	return NULL;
}

int main(void)
{
	pthread_t thread;

	rendezvous("ready");
	in_thread(given());
	for (int i = 0; i < 4; i++) {
		/* Memory for the thread itself comes from the C library. */
		if (pthread_create(&thread, NULL, in_thread, given()) || pthread_join(thread, NULL))
			_exit(2);
	}
	rendezvous("done");
	return 0;
}
