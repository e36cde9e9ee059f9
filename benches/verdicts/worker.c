/*
 * A server that has much memory and is never idle: one thread looks blocks up at random and watches for gaps in the
 * clock, another waits for a moment, again and again, and measures how much longer that took.
 *
 * usage: worker BLOCKS SIZE
 *
 * Prints `started`; after a line of input allocates, and prints `ready`; after each further line prints `N lookups,
 * longest gap G ns, longest wait W ns, C ns of CPU` since the last.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "../../tests/programs/handshake.h"

struct block {
	struct block *next;
	uint64_t number;
};

static struct block **table;
static uint64_t count, size;
static _Atomic uint64_t lookups, longest_gap, longest_wait;

static uint64_t now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void raise_to(_Atomic uint64_t *longest, uint64_t time)
{
	if (time > *longest)
		*longest = time;
}

static void *look_up(void *nothing)
{
	uint64_t random = 1, last = now(CLOCK_MONOTONIC), sum = 0;

	for (;;) {
		for (int times = 0; times < 64; times++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			struct block *block = table[(random >> 33) % count];

			sum += block->number + (block->next ? block->next->number : 0);
			block->number = sum;
		}
		uint64_t time = now(CLOCK_MONOTONIC);

		raise_to(&longest_gap, time - last);
		last = time;
		lookups += 64;
	}
	return nothing;
}

static void *wait_shortly(void *nothing)
{
	const struct timespec pause = {.tv_nsec = 1000000};

	for (;;) {
		uint64_t begin = now(CLOCK_MONOTONIC);

		nanosleep(&pause, NULL);
		raise_to(&longest_wait, now(CLOCK_MONOTONIC) - begin - pause.tv_nsec);
	}
	return nothing;
}

int main(int argc, char **argv)
{
	pthread_t looker, waiter;
	clockid_t clock;

	if (argc < 3)
		return 2;
	count = strtoull(argv[1], NULL, 10);
	size = strtoull(argv[2], NULL, 10);
	rendezvous("started");
	table = malloc(count * sizeof(*table));
	for (uint64_t at = 0; at < count; at++) {
		table[at] = malloc(size);
		memset(table[at], 0, size);
		table[at]->next = at ? table[at - 1] : NULL;
	}
	if (pthread_create(&looker, NULL, look_up, NULL) != 0 || pthread_create(&waiter, NULL, wait_shortly, NULL) != 0)
		return 1;
	pthread_getcpuclockid(looker, &clock);
	say("ready");
	for (;;) {
		uint64_t begin = now(clock);
		char line[128];

		lookups = longest_gap = longest_wait = 0;
		await_line();
		snprintf(line, sizeof(line), "%llu lookups, longest gap %llu ns, longest wait %llu ns, %llu ns of CPU", (unsigned long long)lookups,
			 (unsigned long long)longest_gap, (unsigned long long)longest_wait, (unsigned long long)(now(clock) - begin));
		say(line);
	}
}
