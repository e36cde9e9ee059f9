/*
 * Leaves free memory between blocks, prints its allocator's own figures as `NAME NUMBER`, and `ready`. After a line of
 * input, it has the allocator give memory back to the kernel, and prints `trimmed`.
 *
 * usage: fragmented row          16,000 blocks of 1000 bytes in a row, of which each 32nd is kept
 *        fragmented mixed N      blocks of all sizes, by N further threads, too
 *        fragmented many N       N blocks of 64 to 143 bytes, of which each third is freed
 *        fragmented busy N       N threads that allocate and free without an end
 *        fragmented mixed N wall the same as without it, with a mapping behind the heap segment, so that it cannot grow
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include "../../../../tests/programs/handshake.h"
#include "../../../../tests/programs/keep.h"

int mallctl(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes) __attribute__((weak));

static pthread_barrier_t all_done;

static size_t random_below(uint64_t *state, size_t limit)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % limit;
}

static void print(const char *name, size_t number)
{
	char line[120];

	snprintf(line, sizeof(line), "%s %zu", name, number);
	say(line);
}

static void **places(size_t count)
{
	return mmap(NULL, count * sizeof(void *), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void *get(size_t size)
{
	void *block = malloc(size);

	if (!block)
		_exit(2);
	return memset(block, 1, size);
}

static void row(void)
{
	void **blocks = places(16000);

	for (size_t i = 0; i < 16000; i++)
		blocks[i] = get(1000);
	for (size_t i = 0; i < 16000; i++)
		if (i % 32)
			free(blocks[i]);
}

static void mix(uint64_t *state, size_t count, size_t limit, size_t keep)
{
	void **blocks = places(count);

	for (size_t i = 0; i < count; i++)
		blocks[i] = get(1 + random_below(state, limit));
	for (size_t i = 0; i < count; i++)
		if (random_below(state, keep))
			free(blocks[i]);
	munmap(blocks, count * sizeof(void *));
}

static void mix_all(uint64_t seed)
{
	uint64_t state = seed;

	mix(&state, 20000, 300, 3);
	mix(&state, 300, 100000, 4);
	mix(&state, 5000, 3000, 5);
	mix(&state, 60, 1000000, 3);
	mix(&state, 20000, 120, 2);
	/* Small blocks that stay in lists. */
	mix(&state, 300, 100, 1000);
}

static void *work(void *argument)
{
	mix_all((uintptr_t)argument);
	pthread_barrier_wait(&all_done);
	pause();
	return NULL;
}

static void mixed(size_t threads)
{
	pthread_t thread;

	pthread_barrier_init(&all_done, NULL, threads + 1);
	for (uintptr_t i = 0; i < threads; i++)
		pthread_create(&thread, NULL, work, (void *)(i + 2));
	mix_all(1);
	pthread_barrier_wait(&all_done);
}

static void many(size_t count)
{
	void **blocks = places(count);
	uint64_t state = 1;

	for (size_t i = 0; i < count; i++)
		blocks[i] = get(64 + random_below(&state, 80));
	for (size_t i = 0; i < count; i += 3)
		free(blocks[i]);
	munmap(blocks, count * sizeof(void *));
}

static void *churn(void *argument)
{
	uint64_t state = (uintptr_t)argument;
	void **blocks = places(20000);

	for (;;) {
		size_t i = random_below(&state, 20000);

		free(blocks[i]);
		blocks[i] = get(1 + random_below(&state, random_below(&state, 100) ? 600 : 60000));
	}
	return NULL;
}

static void busy(size_t threads)
{
	pthread_t thread;

	for (uintptr_t i = 0; i < threads; i++)
		pthread_create(&thread, NULL, churn, (void *)(i + 2));
	usleep(300000);
}

static void build_wall(void)
{
	char *end = (char *)(((uintptr_t)sbrk(0) + 4095) & ~(uintptr_t)4095);

	if (mmap(end + (1 << 20), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		_exit(3);
}

static size_t ask(const char *name)
{
	size_t number = 0, bytes = sizeof(number);
	unsigned int small;

	if (mallctl(name, &number, &bytes, NULL, 0) == 0)
		return number;
	bytes = sizeof(small);
	return mallctl(name, &small, &bytes, NULL, 0) == 0 ? small : 0;
}

static void print_jemalloc(void)
{
	static const char *const names[] = { "allocated", "active", "resident", "metadata", "retained" };
	uint64_t epoch = 1;
	char name[80];

	mallctl("epoch", NULL, NULL, &epoch, sizeof(epoch));
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(name, sizeof(name), "stats.%s", names[i]);
		print(names[i], ask(name));
	}
	/* 4096 stands for all arenas. */
	print("dirty", ask("stats.arenas.4096.pdirty") * 4096);
	print("muzzy", ask("stats.arenas.4096.pmuzzy") * 4096);
	for (size_t i = 0; i < ask("arenas.nbins"); i++) {
		snprintf(name, sizeof(name), "arenas.bin.%zu.size", i);
		size_t size = ask(name);

		snprintf(name, sizeof(name), "stats.arenas.4096.bins.%zu.curregs", i);
		size_t blocks = ask(name);

		snprintf(name, sizeof(name), "stats.arenas.4096.bins.%zu.curslabs", i);
		size_t slabs = ask(name);

		snprintf(name, sizeof(name), "blocks_of_%zu", size);
		print(name, blocks);
		snprintf(name, sizeof(name), "slabs_of_%zu", size);
		print(name, slabs);
	}
}

static void print_libc(void)
{
#ifdef __GLIBC__
	struct mallinfo2 all = mallinfo2();

	print("arena", all.arena);
	print("fordblks", all.fordblks);
	print("uordblks", all.uordblks);
	print("fsmblks", all.fsmblks);
	print("hblkhd", all.hblkhd);
	print("hblks", all.hblks);
	print("keepcost", all.keepcost);
	/* The same by arena, without a buffer of the allocator's. */
	static char buffer[4096];

	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	malloc_info(0, stdout);
	fflush(stdout);
#endif
}

static void give_back(void)
{
	if (mallctl)
		mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
#ifdef __GLIBC__
	else
		malloc_trim(0);
#endif
}

int main(int count, char **arguments)
{
	size_t number = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;

	/* Its first use allocates. */
	if (mallctl)
		ask("stats.allocated");
	kept = malloc(100);
	if (count > 3)
		build_wall();
	if (count > 1 && arguments[1][0] == 'r')
		row();
	else if (count > 1 && arguments[1][1] == 'i')
		mixed(number);
	else if (count > 1 && arguments[1][0] == 'b')
		busy(number);
	else
		many(number);
	if (mallctl)
		print_jemalloc();
	else
		print_libc();
	rendezvous("ready");
	give_back();
	rendezvous("trimmed");
	return 0;
}
