/*
 * Allocates and frees in all ways that leave free memory of glibc's malloc, and of musl's, in different places, and
 * prints the state of each block: `used ADDRESS USABLE` or `freed ADDRESS USABLE`, then `end`. Memory that it takes by
 * sbrk itself, which only glibc has, is `taken`.
 *
 * usage: free_memory [wall]    wall: a mapping behind the heap segment, so that it cannot grow
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include "../handshake.h"
#include "../keep.h"

#define MAX_BLOCKS 1000000
#define THREADS 6

struct record {
	char *at;
	size_t usable;
	int is_used;
	/* Mark of the thread that frees or resizes it; null if none does. */
	const void *owner;
};

static struct record records[MAX_BLOCKS];
static size_t count;
static pthread_barrier_t all_done;
static __thread char myself;

static size_t random_below(uint64_t *state, size_t limit)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % limit;
}

static size_t record(void *block, size_t usable, const void *owner)
{
	size_t index = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);

	if (!block || index >= MAX_BLOCKS)
		_exit(2);
	/* Words that look like sizes of chunks, or words that do not. */
	memset(block, index % 2 ? 0x31 : 0, usable);
	records[index] = (struct record){ block, usable, 1, owner };
	return index;
}

static size_t get(size_t size)
{
	void *block = malloc(size);

	return record(block, malloc_usable_size(block), &myself);
}

static void put(size_t index)
{
	if (!records[index].is_used)
		return;
	records[index].is_used = 0;
	free(records[index].at);
}

static size_t get_aligned(size_t alignment, size_t size)
{
	void *block = aligned_alloc(alignment, size);

	return record(block, malloc_usable_size(block), &myself);
}

static void resize(size_t index, size_t size)
{
	if (!records[index].is_used || records[index].owner != &myself)
		return;
	records[index].is_used = 0;
	void *block = realloc(records[index].at, size);

	record(block, malloc_usable_size(block), &myself);
}

/* Allocates blocks of sizes below `limit`; one of `keep` stays. */
static void mix(uint64_t *state, size_t blocks, size_t limit, size_t keep)
{
	size_t *mine = mmap(NULL, blocks * sizeof(*mine), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	for (size_t i = 0; i < blocks; i++)
		mine[i] = get(random_below(state, limit));
	for (size_t i = 0; i < blocks; i++)
		if (random_below(state, keep))
			put(mine[i]);
	munmap(mine, blocks * sizeof(*mine));
}

static void *work(void *argument)
{
	uint64_t state = (uintptr_t)argument;

	mix(&state, 5000, 500, 3);
	/* More than fits in one heap of an arena. */
	if (state % 2)
		mix(&state, 1200, 120000, 4);
	mix(&state, 3000, 3000, 2);
	mix(&state, 3000, 120, 20);
	pthread_barrier_wait(&all_done);
	pause();
	return NULL;
}

static void *work_and_end(void *argument)
{
	uint64_t state = (uintptr_t)argument;

	mix(&state, 1000, 900, 2);
	return NULL;
}

#ifdef __GLIBC__
static void take_from_break(size_t size)
{
	record(sbrk(size), size, NULL);
}

#define MOST_ALIGNED (64 << 10)
#else
static void take_from_break(size_t size)
{
	(void)size;
}

/* Beyond the offsets of a block in its group that musl stores in two bytes. */
#define MOST_ALIGNED (4 << 20)
#endif

static void work_alone(void)
{
	uint64_t state = 1;

	mix(&state, 3000, 3000, 2);
	mix(&state, 20000, 120, 50);
	take_from_break(12 * 4096);
	mix(&state, 3000, 3000, 2);
	take_from_break(3 * 4096 + 48);
	mix(&state, 2000, 9000, 3);
	for (size_t alignment = 32; alignment <= MOST_ALIGNED; alignment *= 2) {
		size_t first = get_aligned(alignment, alignment);

		get_aligned(alignment, 2 * alignment);
		put(first);
	}
	for (size_t size = 200000; size < 2000000; size += 200001) {
		size_t first = get(size);

		get(size);
		put(first);
	}
	for (size_t i = 0; i < 1000; i++)
		resize(random_below(&state, count), 10 + random_below(&state, 2000));
	/* Sorts the free blocks into bins; later ones stay unsorted. */
	get(100000);
	mix(&state, 1000, 3000, 2);
	mix(&state, 1000, 100, 9);
}

static void build_wall(void)
{
	char *end = (char *)(((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095);

	if (mmap(end + (1 << 20), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		_exit(3);
	kept = malloc(1);
}

static void say_all(void)
{
	char line[100];

	for (size_t i = 0; i < count; i++) {
		struct record *it = &records[i];

		const char *what = !it->owner ? "taken" : it->is_used ? "used" : "freed";

		snprintf(line, sizeof(line), "%s %zx %zx", what, (size_t)it->at, it->usable);
		say(line);
	}
	rendezvous("end");
}

int main(int count_arguments, char **arguments)
{
	pthread_t thread;

	(void)arguments;
	if (count_arguments > 1)
		build_wall();
	pthread_barrier_init(&all_done, NULL, THREADS + 1);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&thread, NULL, work, (void *)(i + 1));
	pthread_create(&thread, NULL, work_and_end, (void *)99);
	pthread_join(thread, NULL);
	work_alone();
	pthread_barrier_wait(&all_done);
	say_all();
	return 0;
}
