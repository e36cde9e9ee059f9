/*
 * A slow leak in heavy churn, without end: THREADS threads allocate, resize and free blocks of all sizes by a few dozen
 * stacks; most are freed at once, some after a while and in another thread; a cache fills and is emptied; a library
 * comes and goes, and so do threads and children. All the while, one function loses a block now and then. Together the
 * threads use LOAD per cent of one processor.
 *
 * At a line, it stands still and prints how much each function has allocated and freed so far; at the next, it runs on.
 * At the line "end" it frees everything that is not lost, prints that once more, and ends at the next line.
 *
 * usage: soak LIBRARY LOAD
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define THREADS 3
#define SLOTS 8000
/* Turns of a thread between two looks at the clock, and time between those of the thread that loses blocks. */
#define BURST 250
#define TICK_NS 50000000
#define LEAKED_BYTES 200
#define CACHED_BYTES 1024
#define CACHED_BLOCKS 300
#define TICKS_PER_EVENT 20

enum site { SMALL, MEDIUM, LARGE, RESIZED, CACHED, LEAKED, SITES };

static struct {
	const char *name;
	atomic_ulong allocated, allocated_bytes, freed, freed_bytes;
} sites[SITES] = {
	[SMALL] = { "small" }, [MEDIUM] = { "medium" }, [LARGE] = { "large" },
	[RESIZED] = { "resized" }, [CACHED] = { "cached" }, [LEAKED] = { "leaked" },
};

/* Header of every block. */
struct block {
	uint32_t size;
	enum site site;
};

static _Atomic(struct block *) slots[SLOTS];
static struct block *cache[CACHED_BLOCKS];
static int cached_blocks;
static const char *library;
static long load;
static atomic_bool is_over;
/* While it is held for writing, no thread allocates. */
static pthread_rwlock_t running;

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void count_freed(const struct block *block)
{
	sites[block->site].freed++;
	sites[block->site].freed_bytes += block->size;
}

static struct block *begun(void *memory, enum site site, size_t size)
{
	struct block *block = memory;

	if (!block)
		_exit(2);
	*block = (struct block){ .size = size, .site = site };
	sites[site].allocated++;
	sites[site].allocated_bytes += size;
	return block;
}

NOINLINE static struct block *small(size_t size) { return begun(malloc(16 + size % 240), SMALL, 16 + size % 240); }
NOINLINE static struct block *medium(size_t size) { return begun(calloc(1, 256 + size % 4000), MEDIUM, 256 + size % 4000); }
NOINLINE static struct block *large(size_t size) { return begun(malloc(4096 + size % 12000), LARGE, 4096 + size % 12000); }
NOINLINE static struct block *cached(void) { return begun(malloc(CACHED_BYTES), CACHED, CACHED_BYTES); }
NOINLINE static void leaked(void) { kept = begun(malloc(LEAKED_BYTES), LEAKED, LEAKED_BYTES); }

NOINLINE static struct block *resized(struct block *block, size_t size)
{
	if (block)
		count_freed(block);
	return begun(realloc(block, 16 + size % 9000), RESIZED, 16 + size % 9000);
}

static void release(struct block *block)
{
	if (block)
		count_freed(block);
	free(block);
}

static struct block *allocate(uint64_t random)
{
	switch (random % 8) {
	case 0:
		return large(random >> 8);
	case 1: case 2:
		return medium(random >> 8);
	case 3:
		return resized(NULL, random >> 8);
	default:
		return small(random >> 8);
	}
}

/* Takes the block out of a slot, and resizes or frees it; puts a block that stays for a while into an empty slot. */
static void exchange(uint64_t random)
{
	_Atomic(struct block *) *slot = &slots[(random >> 16) % SLOTS];
	struct block *block = atomic_exchange(slot, NULL), *none = NULL;

	if (!block)
		block = allocate(random);
	else if (block->site == RESIZED && random % 4)
		block = resized(block, random >> 8);
	else {
		release(block);
		return;
	}
	/* Another thread may have been faster. */
	if (!atomic_compare_exchange_strong(slot, &none, block))
		release(block);
}

static void turn(uint64_t random)
{
	if (random >> 62 == 0)
		exchange(random);
	else
		release(allocate(random));
}

/* Each bit selects one of two functions to call: that gives 2^bits stacks. */
NOINLINE static void left(unsigned path, uint64_t random);
NOINLINE static void right(unsigned path, uint64_t random);

static void descend(unsigned path, uint64_t random)
{
	if (path <= 1)
		turn(random);
	else if (path & 1)
		left(path >> 1, random);
	else
		right(path >> 1, random);
}

static void left(unsigned path, uint64_t random) { descend(path, random); *(volatile char *)&path; }
static void right(unsigned path, uint64_t random) { descend(path, random); *(volatile char *)&path; }

static long cpu_time(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

static void pause_for(long nanoseconds)
{
	struct timespec time = { nanoseconds / 1000000000, nanoseconds % 1000000000 };

	nanosleep(&time, NULL);
}

static void *churn(void *argument)
{
	uint64_t random = (uintptr_t)argument * 0x9e3779b97f4a7c15;
	long began = cpu_time();

	while (!is_over) {
		pthread_rwlock_rdlock(&running);
		for (int number = 0; number < BURST; number++) {
			next(&random);
			descend(32 | (random >> 40) % 32, random);
		}
		pthread_rwlock_unlock(&running);
		long now = cpu_time();
		if (load < 100 * THREADS)
			pause_for((now - began) * (100 * THREADS - load) / load);
		began = now;
	}
	return NULL;
}

static void *short_lived(void *argument)
{
	release(small((uintptr_t)argument));
	return NULL;
}

/* A library, a thread and a child come and go. */
static void happen(uintptr_t number)
{
	void *object = dlopen(library, RTLD_NOW);
	pthread_t thread;
	pid_t child;

	if (!object || ((int (*)(void))dlsym(object, "use"))() || dlclose(object))
		_exit(3);
	if (pthread_create(&thread, NULL, short_lived, (void *)number) || pthread_join(thread, NULL))
		_exit(4);
	child = fork();
	if (child == 0) {
		free(malloc(number));
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static void empty_cache(void)
{
	while (cached_blocks)
		release(cache[--cached_blocks]);
}

static void *lose(void *argument)
{
	for (uintptr_t tick = 1; !is_over; tick++) {
		pthread_rwlock_rdlock(&running);
		leaked();
		cache[cached_blocks++] = cached();
		if (cached_blocks == CACHED_BLOCKS)
			empty_cache();
		if (tick % TICKS_PER_EVENT == 0)
			happen(tick);
		pthread_rwlock_unlock(&running);
		pause_for(TICK_NS);
	}
	return argument;
}

static void say_counts(void)
{
	char line[128];

	for (int site = 0; site < SITES; site++) {
		snprintf(line, sizeof(line), "%s %lu %lu %lu %lu", sites[site].name, sites[site].allocated,
			 sites[site].allocated_bytes, sites[site].freed, sites[site].freed_bytes);
		say(line);
	}
	say("still");
}

/* Reads a line and returns its first character; ends the program at the end of the input. */
static char read_line(void)
{
	char first = 0, byte;

	while (read(STDIN_FILENO, &byte, 1) == 1) {
		if (byte == '\n')
			return first;
		if (!first)
			first = byte;
	}
	_exit(1);
}

static void stand_still_at_each_line(void)
{
	while (read_line() != 'e') {
		pthread_rwlock_wrlock(&running);
		say_counts();
		read_line();
		pthread_rwlock_unlock(&running);
	}
}

static void free_all(void)
{
	for (int slot = 0; slot < SLOTS; slot++)
		release(slots[slot]);
	empty_cache();
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS + 1];
	pthread_rwlockattr_t fair;

	if (argc != 3)
		return 1;
	library = argv[1];
	load = atol(argv[2]);
	pthread_rwlockattr_init(&fair);
	pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&running, &fair);
	rendezvous("ready");
	for (uintptr_t number = 0; number <= THREADS; number++)
		pthread_create(&threads[number], NULL, number ? churn : lose, (void *)number);
	stand_still_at_each_line();
	is_over = 1;
	for (int number = 0; number <= THREADS; number++)
		pthread_join(threads[number], NULL);
	free_all();
	say_counts();
	read_line();
	return 0;
}
