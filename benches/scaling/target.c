/*
 * The program that benches/scaling and benches/tools trace: pairs of malloc and free while many blocks live, from many
 * stacks, in many threads.
 *
 * Reads commands, one per line, and answers each with the CPU time per pair in nanoseconds, of all threads together:
 *
 *   pair STACKS THREADS PAIRS     a block is allocated and freed at once; PAIRS by all THREADS together
 *   replace STACKS LIVE PAIRS     one of LIVE blocks, at random, is freed and another allocated
 *   mixed STACKS LIVE PAIRS       the same with blocks of 16 to 4096 bytes, each fourth time by realloc
 *   visit STACKS 1 PAIRS          as `pair`, but each stack in its turn: all of them, if there are as many pairs
 *   rest STACKS LIVE PAIRS        as `pair` in one thread, while LIVE blocks live that are not touched
 *
 * A pair is made from one of STACKS stacks, at most 65536, at random. All are of the same depth, and differ in which
 * of 16 functions is called at each of LEVELS levels. LIVE blocks are made before time is taken and live on until a
 * command says another number. No call is a tail call. Ends at the end of input.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEVELS 4
#define STACKS 65536
#define THREADS 64
#define BLOCK 32

enum mode { PAIR, REPLACE, MIXED, VISIT, REST };

struct work {
	pthread_t thread;
	enum mode mode;
	unsigned stacks;
	unsigned long pairs;
	unsigned random;
	/* The chosen stack: 4 bits for each level. */
	unsigned stack;
	double nanoseconds;
};

static void **live;
static unsigned long live_count;

static unsigned random_number(struct work *work)
{
	unsigned state = work->random;

	state ^= state << 13;
	state ^= state >> 17;
	return work->random = state ^= state << 5;
}

static double thread_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* Few are large, as in most programs. */
static size_t mixed_size(struct work *work)
{
	return 16ul << random_number(work) % 9 >> random_number(work) % 2;
}

static void **any_block(struct work *work)
{
	return &live[random_number(work) % live_count];
}

/* The innermost frame. */
static __attribute__((noinline)) void one_pair(struct work *work)
{
	void *volatile block;
	void **slot;

	switch (work->mode) {
	case PAIR:
	case VISIT:
	case REST:
		block = malloc(BLOCK);
		free(block);
		return;
	case REPLACE:
		slot = any_block(work);
		free(*slot);
		*slot = malloc(BLOCK);
		return;
	case MIXED:
		slot = any_block(work);
		if (random_number(work) % 4 == 0) {
			*slot = realloc(*slot, mixed_size(work));
			return;
		}
		free(*slot);
		*slot = malloc(mixed_size(work));
	}
}

typedef unsigned level_function(struct work *work);
static level_function *const levels[LEVELS][16];

/* A function calls the one of the next level that the chosen stack names; at the innermost level it calls one_pair. */
#define FUNCTION(level, number)                                         \
	static __attribute__((noinline)) unsigned level_##level##_##number(struct work *work) \
	{                                                               \
		volatile char frame[16 + (level + number) % 5 * 16];    \
		unsigned done = 0;                                      \
		frame[0] = 1;                                           \
		if (level == 0)                                         \
			one_pair(work);                                 \
		else                                                    \
			done = levels[(level + LEVELS - 1) % LEVELS][work->stack >> 4 * ((level + LEVELS - 1) % LEVELS) & 15](work); \
		return done + frame[0];                                 \
	}
#define EACH(of, level) \
	of(level, 0) of(level, 1) of(level, 2) of(level, 3) of(level, 4) of(level, 5) of(level, 6) of(level, 7) \
	of(level, 8) of(level, 9) of(level, 10) of(level, 11) of(level, 12) of(level, 13) of(level, 14) of(level, 15)
#define ADDRESS(level, number) level_##level##_##number,

EACH(FUNCTION, 0)
EACH(FUNCTION, 1)
EACH(FUNCTION, 2)
EACH(FUNCTION, 3)
static level_function *const levels[LEVELS][16] = {
	{ EACH(ADDRESS, 0) }, { EACH(ADDRESS, 1) }, { EACH(ADDRESS, 2) }, { EACH(ADDRESS, 3) },
};

static void *run(void *argument)
{
	struct work *work = argument;
	double began = thread_nanoseconds();

	for (unsigned long number = 0; number < work->pairs; number++) {
		work->stack = (work->mode == VISIT ? number : random_number(work) >> 8) % work->stacks;
		levels[LEVELS - 1][work->stack >> 4 * (LEVELS - 1) & 15](work);
	}
	work->nanoseconds = thread_nanoseconds() - began;
	return NULL;
}

/* Makes `count` blocks live; new ones all come from one stack. */
static int set_live(unsigned long count)
{
	while (live_count > count)
		free(live[--live_count]);
	live = realloc(live, (count + 1) * sizeof(*live));
	while (live && live_count < count) {
		live[live_count] = malloc(BLOCK);
		live_count++;
	}
	return live != NULL;
}

static int run_threads(const struct work *work, unsigned long threads)
{
	static struct work all[THREADS];
	double nanoseconds = 0;
	unsigned long started;

	for (started = 0; started < threads; started++) {
		all[started] = *work;
		all[started].pairs = work->pairs / threads;
		all[started].random += 7919 * started;
		if (pthread_create(&all[started].thread, NULL, run, &all[started]))
			return 0;
	}
	while (started--) {
		pthread_join(all[started].thread, NULL);
		nanoseconds += all[started].nanoseconds;
	}
	printf("%.2f\n", nanoseconds / (work->pairs / threads * threads));
	return 1;
}

static enum mode mode_named(const char *name)
{
	return strcmp(name, "visit") == 0 ? VISIT : strcmp(name, "mixed") == 0 ? MIXED :
	       strcmp(name, "replace") == 0 ? REPLACE : strcmp(name, "rest") == 0 ? REST : PAIR;
}

int main(void)
{
	static unsigned seed = 2463534242u;
	char mode[8];
	unsigned stacks;
	unsigned long number, pairs;

	while (scanf("%7s %u %lu %lu", mode, &stacks, &number, &pairs) == 4) {
		struct work work = { .mode = mode_named(mode), .stacks = stacks, .pairs = pairs, .random = seed += 2 };
		int has_live = work.mode == REPLACE || work.mode == MIXED || work.mode == REST;

		if (stacks == 0 || stacks > STACKS || number == 0 || pairs < (has_live ? 1 : number))
			return 1;
		if (!has_live && number > THREADS)
			return 1;
		if (has_live && !set_live(number))
			return 1;
		if (!run_threads(&work, has_live ? 1 : number))
			return 1;
		fflush(stdout);
	}
	return 0;
}
