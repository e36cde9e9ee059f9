/*
 * The program that benches/probe_cost.rs traces: pairs of malloc and free, called at a chosen depth.
 *
 * Reads commands, one per line, and answers each with the CPU time per pair in nanoseconds:
 *
 *   hot DEPTH PAIRS      all pairs from one stack of DEPTH frames, the caller of malloc up to _start
 *   varied DEPTH PAIRS   each pair from one of 32 stacks at random, of DEPTH - 3 to DEPTH frames
 *
 * CPU time, so that other programs on the machine do not count. Every frame is a function of its own with a
 * frame of its own size, as in a real program; no call is a tail call. Ends at the end of input.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Frames outside the levels: `work` below them, `main`, and three that start the program above. */
#define FIXED_FRAMES 5
#define LEVELS 128
#define DEPTHS 4
#define STARTS 8
#define BLOCK 64

static unsigned long pairs;
static void *volatile kept;

/* The innermost frame. */
static __attribute__((noinline)) unsigned long work(void)
{
	for (unsigned long left = pairs; left; left--) {
		kept = malloc(BLOCK);
		free(kept);
	}
	return pairs;
}

typedef unsigned long level_function(unsigned remaining);
static level_function *const levels[LEVELS];

/* Level N calls level N - 1 until no more frames remain. Frames of 16 to 144 bytes beyond what a call needs. */
#define LEVEL(n)                                                        \
	static __attribute__((noinline)) unsigned long level_##n(unsigned remaining) \
	{                                                               \
		volatile char frame[16 + (0x##n % 9) * 16];             \
		unsigned long done;                                     \
		frame[0] = 0x##n;                                       \
		done = remaining ? levels[0x##n ? 0x##n - 1 : LEVELS - 1](remaining - 1) : work(); \
		return done + frame[0];                                 \
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

static unsigned random_number(void)
{
	static unsigned state = 2463534242u;

	state ^= state << 13;
	state ^= state >> 17;
	return state ^= state << 5;
}

static double cpu_nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(void)
{
	volatile unsigned long done = 0;
	char mode[8];
	unsigned depth;
	unsigned long count;

	while (scanf("%7s %u %lu", mode, &depth, &count) == 3) {
		unsigned remaining = depth - FIXED_FRAMES - 1;
		double began = cpu_nanoseconds();

		if (depth < FIXED_FRAMES + DEPTHS || depth > LEVELS - STARTS || count == 0)
			return 1;
		if (strcmp(mode, "hot") == 0) {
			pairs = count;
			done += levels[remaining](remaining);
		} else {
			pairs = 1;
			for (unsigned long left = count; left; left--) {
				unsigned random = random_number() >> 8;
				unsigned less = random % DEPTHS;
				unsigned start = random / DEPTHS % STARTS;

				done += levels[remaining + start](remaining - less);
			}
		}
		printf("%.2f\n", (cpu_nanoseconds() - began) / count);
		fflush(stdout);
	}
	return 0;
}
