/*
 * The program that the benchmark traces: pairs of malloc and free, called at a chosen depth.
 *
 * Reads commands, one per line, and answers each with two numbers, the means of its threads: the time per pair in round
 * trips of some bytes through a pipe, and that of a round trip in nanoseconds. With the argument "plain" there are no
 * round trips, and the answer is the time per pair in nanoseconds.
 *
 *   hot DEPTH PAIRS [THREADS]      all pairs from one stack of DEPTH frames, the caller of malloc up to the outermost
 *   varied DEPTH PAIRS [THREADS]     each pair from one of 32 stacks at random, of DEPTH - 3 to DEPTH frames
 *   distinct DEPTH PAIRS [THREADS]   each pair from the next of 4096 stacks of DEPTH frames
 *   recursive DEPTH PAIRS [THREADS]  all pairs from the bottom of a recursion, which may be deeper than the others
 *
 * Times are CPU time, so that other programs on the machine do not count, except that they make the processor slower,
 * which changes from second to second. So pairs are measured in slices of a fraction of a millisecond, each with round
 * trips before and after it, which slow down alike: they enter and leave the kernel and copy little, as probes do. The
 * answer is the median of slices. Every frame is of a different function and of a different size, as in a real program;
 * no call is a tail call. Sizes are multiples of FRAME_UNIT. Ends at the end of input.
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

/*
 * Frames outside the levels in any thread: `work` below them, `run_pairs` and `begin_thread`, `start_thread` and
 * `clone3`.
 */
#define FIXED_FRAMES 5
#define LEVELS 128
#define DEPTHS 4
#define STARTS 8
/* Distinct stacks differ at four levels, in one of eight functions each. */
#define CHOICES 8
#define CHOOSING_LEVELS 4
#define DISTINCT 4096
#define MOST_THREADS 64
#define MOST_RECURSIVE 5000
#define BLOCK 64
#define SLICE_PAIRS 150
#define SLICE_ROUND_TRIPS 60
#define MOST_SLICES 4096
#define PIPE_BYTES 256
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

/* Frames of one function. */
static __attribute__((noinline)) unsigned long recurse(unsigned remaining)
{
	volatile char frame[FRAME_UNIT];
	unsigned long done;

	frame[0] = 1;
	done = remaining ? recurse(remaining - 1) : work();
	return done + frame[0];
}

static int plain;

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
	int pipe[2];
	/* Results: medians over slices. */
	double round_trips;
	double nanoseconds;
	/* Values of each slice, for the medians. */
	double costs[MOST_SLICES];
	double references[MOST_SLICES];
	/* State of the choice of stacks. */
	unsigned random;
	unsigned long turn;
	/* Keeps the compiler from dropping the work. */
	unsigned long done;
};

static __attribute__((noinline)) unsigned long run_pairs(struct job *job, unsigned long count)
{
	unsigned remaining = job->depth - FIXED_FRAMES - 1;
	unsigned long done = 0;

	if (job->mode[0] == 'h') {
		pairs = count;
		return levels[remaining](remaining, 0, LEVELS);
	}
	if (job->mode[0] == 'r') {
		pairs = count;
		return recurse(remaining);
	}
	pairs = 1;
	if (job->mode[0] == 'v') {
		for (; count; count--) {
			unsigned random = random_number(&job->random) >> 8;
			unsigned less = random % DEPTHS;
			unsigned start = random / DEPTHS % STARTS;

			done += levels[remaining + start](remaining - less, 0, LEVELS);
		}
		return done;
	}
	for (; count; count--)
		done += levels[remaining](remaining, job->turn++ % DISTINCT, remaining / CHOOSING_LEVELS);
	return done;
}

/* Nanoseconds of a round trip through the pipe. */
static double round_trip(const struct job *job)
{
	char bytes[PIPE_BYTES] = { 0 };
	double began = cpu_nanoseconds();

	for (int left = SLICE_ROUND_TRIPS; left; left--) {
		if (write(job->pipe[1], bytes, PIPE_BYTES) != PIPE_BYTES ||
		    read(job->pipe[0], bytes, PIPE_BYTES) != PIPE_BYTES)
			exit(1);
	}
	return (cpu_nanoseconds() - began) / SLICE_ROUND_TRIPS;
}

/* Sorts the values and returns their median. Not by qsort, which may allocate. */
static double median(double *values, unsigned long count)
{
	for (unsigned long end = 1; end < count; end++) {
		double value = values[end];
		unsigned long at = end;

		for (; at && values[at - 1] > value; at--)
			values[at] = values[at - 1];
		values[at] = value;
	}
	return values[count / 2];
}

static __attribute__((noinline)) void *begin_thread(void *argument)
{
	struct job *job = argument;
	unsigned long left = job->count, slices = 0;
	cpu_set_t cpus;

	/* Pin each thread to one CPU: two need not be equally fast. */
	CPU_ZERO(&cpus);
	CPU_SET(job->number % sysconf(_SC_NPROCESSORS_ONLN), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	job->random = 2463534242u;
	job->turn = 0;
	if (plain) {
		double began = cpu_nanoseconds();

		job->done += run_pairs(job, job->count);
		job->nanoseconds = (cpu_nanoseconds() - began) / job->count;
		return NULL;
	}
	while (left && slices < MOST_SLICES) {
		unsigned long count = left < 2 * SLICE_PAIRS ? left : SLICE_PAIRS;
		double before = round_trip(job);
		double began = cpu_nanoseconds();
		double took;

		job->done += run_pairs(job, count);
		took = cpu_nanoseconds() - began;
		job->references[slices] = (before + round_trip(job)) / 2;
		job->costs[slices] = took / count / job->references[slices];
		slices++;
		left -= count;
	}
	job->round_trips = median(job->costs, slices);
	job->nanoseconds = median(job->references, slices);
	return NULL;
}

int main(int argc, char **argv)
{
	static struct job jobs[MOST_THREADS];
	static struct job asked;
	unsigned threads = 1;
	char line[128];

	plain = argc > 1 && !strcmp(argv[1], "plain");
	for (unsigned number = 0; number < MOST_THREADS; number++) {
		jobs[number].number = number;
		if (pipe(jobs[number].pipe))
			return 1;
	}
	while (fgets(line, sizeof(line), stdin) &&
	       sscanf(line, "%15s %u %lu %u", asked.mode, &asked.depth, &asked.count, &threads) >= 3) {
		pthread_t ids[MOST_THREADS];
		double round_trips = 0, nanoseconds = 0;

		if (asked.depth < FIXED_FRAMES + 1 + CHOOSING_LEVELS ||
		    asked.depth > (asked.mode[0] == 'r' ? MOST_RECURSIVE : LEVELS - STARTS) ||
		    !asked.count || (!plain && asked.count > SLICE_PAIRS * MOST_SLICES) || !threads ||
		    threads > MOST_THREADS)
			return 1;
		for (unsigned number = 0; number < threads; number++) {
			struct job *job = &jobs[number];

			memcpy(job->mode, asked.mode, sizeof(job->mode));
			job->depth = asked.depth;
			job->count = asked.count;
			if (pthread_create(&ids[number], NULL, begin_thread, job))
				return 1;
		}
		for (unsigned number = 0; number < threads; number++) {
			pthread_join(ids[number], NULL);
			round_trips += jobs[number].round_trips / threads;
			nanoseconds += jobs[number].nanoseconds / threads;
		}
		if (plain)
			printf("%.2f\n", nanoseconds);
		else
			printf("%.5f %.2f\n", round_trips, nanoseconds);
		fflush(stdout);
		threads = 1;
	}
	return 0;
}
