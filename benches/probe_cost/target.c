/*
 * The program that the benchmark traces: pairs of malloc and free, called at a chosen depth.
 *
 * Reads commands, one per line, and answers each with the CPU time per pair in nanoseconds, the mean of its threads:
 *
 *   hot DEPTH PAIRS [THREADS]      all pairs from one stack of DEPTH frames, the caller of malloc up to the outermost
 *   varied DEPTH PAIRS [THREADS]     each pair from one of 32 stacks at random, of DEPTH - 3 to DEPTH frames
 *   distinct DEPTH PAIRS [THREADS]   each pair from the next of 4096 stacks of DEPTH frames
 *
 * CPU time, so that other programs on the machine do not count. Every frame is a function of its own with a
 * frame of its own size, as in a real program; no call is a tail call. FRAME_UNIT is what sizes are multiples of.
 * Ends at the end of input.
 */
#define _GNU_SOURCE
#pragma GCC optimize("no-optimize-sibling-calls")

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Frames outside the levels in any thread: `work` below them, `run_pairs` and `begin_thread`, `start_thread` and `clone3`. */
#define FIXED_FRAMES 5
#define LEVELS 128
#define DEPTHS 4
#define STARTS 8
/* Distinct stacks differ at four levels, in one of eight functions each. */
#define CHOICES 8
#define CHOOSING_LEVELS 4
#define DISTINCT 4096
#define MOST_THREADS 64
#define BLOCK 64
#ifndef FRAME_UNIT
#define FRAME_UNIT 16
#endif

static __thread unsigned long pairs;
static __thread void *volatile kept;

/* The innermost frame. */
static __attribute__((noinline)) unsigned long work(void)
{
	for (unsigned long left = pairs; left; left--) {
		kept = malloc(BLOCK);
		free(kept);
	}
	return pairs;
}

/* `path` chooses among functions: three bits at each of the levels whose number is a multiple of `every`. */
typedef unsigned long level_function(unsigned remaining, unsigned path, unsigned every);
static level_function *const levels[LEVELS];

static inline level_function *next_level(unsigned remaining, unsigned path, unsigned every)
{
	unsigned at = remaining - 1;

	if (at % every == 0 && at / every < CHOOSING_LEVELS)
		at = LEVELS / 2 + at / every * CHOICES + (path >> 3 * (at / every) & (CHOICES - 1));
	return levels[at % LEVELS];
}

/* Frames of 1 to 9 units beyond what a call needs. */
#define LEVEL(n)                                                                                      \
	static __attribute__((noinline)) unsigned long level_##n(unsigned remaining, unsigned path, unsigned every) \
	{                                                                                             \
		volatile char frame[FRAME_UNIT + (0x##n % 9) * FRAME_UNIT];                           \
		unsigned long done;                                                                   \
		frame[0] = 0x##n;                                                                     \
		done = remaining ? next_level(remaining, path, every)(remaining - 1, path, every) : work(); \
		return done + frame[0];                                                               \
	}
#define LEVELS_16(x, of) \
	of(x##0) of(x##1) of(x##2) of(x##3) of(x##4) of(x##5) of(x##6) of(x##7) \
	of(x##8) of(x##9) of(x##a) of(x##b) of(x##c) of(x##d) of(x##e) of(x##f)
#define ALL_LEVELS(of) \
	LEVELS_16(0, of) LEVELS_16(1, of) LEVELS_16(2, of) LEVELS_16(3, of) \
	LEVELS_16(4, of) LEVELS_16(5, of) LEVELS_16(6, of) LEVELS_16(7, of)
#define ADDRESS(n) level_##n,

ALL_LEVELS(LEVEL)
static level_function *const levels[LEVELS] = { ALL_LEVELS(ADDRESS) };

static unsigned random_number(unsigned *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	return *state ^= *state << 5;
}

static double cpu_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

struct job {
	char mode[16];
	unsigned number;
	unsigned depth;
	unsigned long count;
	double nanoseconds;
	/* Keeps the work from being left out. */
	unsigned long done;
};

static __attribute__((noinline)) unsigned long run_pairs(const struct job *job)
{
	unsigned remaining = job->depth - FIXED_FRAMES - 1;
	unsigned long done = 0;

	if (job->mode[0] == 'h') {
		pairs = job->count;
		return levels[remaining](remaining, 0, LEVELS);
	}
	pairs = 1;
	if (job->mode[0] == 'v') {
		unsigned state = 2463534242u;

		for (unsigned long left = job->count; left; left--) {
			unsigned random = random_number(&state) >> 8;
			unsigned less = random % DEPTHS;
			unsigned start = random / DEPTHS % STARTS;

			done += levels[remaining + start](remaining - less, 0, LEVELS);
		}
		return done;
	}
	for (unsigned long left = job->count; left; left--)
		done += levels[remaining](remaining, left % DISTINCT, remaining / CHOOSING_LEVELS);
	return done;
}

static __attribute__((noinline)) void *begin_thread(void *argument)
{
	struct job *job = argument;
	cpu_set_t cpus;
	double began;

	/* One thread is always on the same CPU: two need not be equally fast. */
	CPU_ZERO(&cpus);
	CPU_SET(job->number % sysconf(_SC_NPROCESSORS_ONLN), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	began = cpu_nanoseconds();
	job->done = run_pairs(job);
	job->nanoseconds = (cpu_nanoseconds() - began) / job->count;
	return NULL;
}

int main(void)
{
	static struct job jobs[MOST_THREADS];
	struct job job = { 0 };
	unsigned threads = 1;
	char line[128];

	while (fgets(line, sizeof(line), stdin) &&
	       sscanf(line, "%15s %u %lu %u", job.mode, &job.depth, &job.count, &threads) >= 3) {
		pthread_t ids[MOST_THREADS];
		double sum = 0;

		if (job.depth < FIXED_FRAMES + 1 + CHOOSING_LEVELS || job.depth > LEVELS - STARTS || !job.count ||
		    !threads || threads > MOST_THREADS)
			return 1;
		for (unsigned number = 0; number < threads; number++) {
			jobs[number] = job;
			jobs[number].number = number;
			if (pthread_create(&ids[number], NULL, begin_thread, &jobs[number]))
				return 1;
		}
		for (unsigned number = 0; number < threads; number++) {
			pthread_join(ids[number], NULL);
			sum += jobs[number].nanoseconds;
		}
		printf("%.2f\n", sum / threads);
		fflush(stdout);
		threads = 1;
	}
	return 0;
}
