/*
 * Allocates BLOCKS blocks of many sizes, resizes a third of them and frees a third. Before and after, says how many
 * bytes its allocator says are live, and how many of them exceed the requests: bytes that the allocator counts for
 * itself in each block (glibc: 8, the header), and bytes beyond the requested size. The latter are few: the sizes are
 * those that it gives without rounding, but blocks that are resized may be left or made longer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include "../handshake.h"
#include "../keep.h"

#define MAX_BLOCKS 100000
#define MAX_SIZE 20000

typedef int mallctl(const char *, void *, size_t *, void *, size_t);
typedef int get_property(const char *, size_t *);

static mallctl *control;
static get_property *property;
static void *blocks[MAX_BLOCKS];
static size_t asked[MAX_BLOCKS];
static size_t whole[MAX_SIZE + 1];
static uint64_t state = 1;

static size_t random_below(size_t limit)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 33) % limit;
}

/* Few large blocks and many small ones. */
static size_t random_size(void)
{
	return whole[1 + random_below(random_below(16) ? 500 : MAX_SIZE)];
}

static size_t of_jemalloc(void)
{
	size_t allocated = 0, length = sizeof(allocated);
	uint64_t epoch = 1;

	control("thread.tcache.flush", NULL, NULL, NULL, 0);
	control("epoch", NULL, NULL, &epoch, sizeof(epoch));
	return control("stats.allocated", &allocated, &length, NULL, 0) ? 0 : allocated;
}

static size_t own_word(void)
{
	size_t allocated = 0;

	if (control)
		return of_jemalloc();
	if (property) {
		property("generic.current_allocated_bytes", &allocated);
		return allocated;
	}

	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

/* Bytes of live blocks beyond the requested sizes. */
static size_t slack(void)
{
	size_t header = control || property ? 0 : sizeof(size_t), sum = 0;

	for (long number = 0; number < MAX_BLOCKS; number++) {
		if (blocks[number])
			sum += malloc_usable_size(blocks[number]) - asked[number] + header;
	}
	return sum;
}

NOINLINE static void work(long count)
{
	for (long number = 0; number < count; number++) {
		asked[number] = random_size();
		blocks[number] = malloc(asked[number]);
	}
	for (long number = 0; number < count; number += 3)
		blocks[number] = realloc(blocks[number], asked[number] = random_size());
	for (long number = 1; number < count; number += 3) {
		free(blocks[number]);
		blocks[number] = NULL;
	}
}

static void tell(void)
{
	char line[64];

	snprintf(line, sizeof(line), "%zu %zu", own_word(), slack());
	say(line);
}

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : 1;

	control = (mallctl *)dlsym(RTLD_DEFAULT, "mallctl");
	property = (get_property *)dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty");
	for (size_t size = 1; size <= MAX_SIZE; size++) {
		void *volatile block = malloc(size);

		whole[size] = malloc_usable_size(block);
		free(block);
	}
	rendezvous("ready");
	tell();
	work(count < MAX_BLOCKS ? count : MAX_BLOCKS);
	tell();
	rendezvous("done");
	return 0;
}
