/*
 * Pairs of allocation and free at a chosen rate, in three sizes. Each block is freed after LIVE more were allocated.
 * Reads commands, a line each:
 *
 *   MILLISECONDS PAIRS   that many pairs in each millisecond; 0 milliseconds: that many at once
 *   free                 frees all remaining blocks
 *
 * and answers each with the CPU nanoseconds that it took, and the bytes requested in each size since the start.
 */
#include <stdio.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define LIVE 512

static void *live[LIVE];
static unsigned long number, bytes[3];

#define KIND(name)                                          \
	NOINLINE static void *allocate_##name(size_t size)  \
	{                                                   \
		void *block = malloc(size);                 \
                                                            \
		kept = block;                               \
		return block;                               \
	}

KIND(small)
KIND(middle)
KIND(large)

static void *allocate(void)
{
	size_t small = 16 + number % 64, middle = 1000 + number % 1000, large = 100000;

	if (number % 1000 == 7)
		return bytes[2] += large, allocate_large(large);
	if (number % 16 == 3)
		return bytes[1] += middle, allocate_middle(middle);
	return bytes[0] += small, allocate_small(small);
}

static void pairs(unsigned count)
{
	for (; count; count--, number++) {
		free(live[number % LIVE]);
		live[number % LIVE] = allocate();
	}
}

static void free_all(void)
{
	for (int place = 0; place < LIVE; place++) {
		free(live[place]);
		live[place] = NULL;
	}
}

static long now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

static void pace(long milliseconds, unsigned count)
{
	long end = now(CLOCK_MONOTONIC);

	for (long passed = 0; passed < milliseconds; passed++) {
		struct timespec until = { (end += 1000000) / 1000000000, end % 1000000000 };

		pairs(count);
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	}
}

static void read_line(char *line, size_t room)
{
	size_t length = 0;

	while (length < room - 1 && read(STDIN_FILENO, line + length, 1) == 1 && line[length] != '\n')
		length++;
	if (!length)
		_exit(0);
	line[length] = '\0';
}

int main(void)
{
	char line[64];

	say("ready");
	for (;;) {
		long milliseconds, before;
		unsigned count;

		read_line(line, sizeof(line));
		before = now(CLOCK_PROCESS_CPUTIME_ID);
		if (!strcmp(line, "free"))
			free_all();
		else if (sscanf(line, "%ld %u", &milliseconds, &count) != 2)
			return 1;
		else if (milliseconds)
			pace(milliseconds, count);
		else
			pairs(count);
		snprintf(line, sizeof(line), "%ld %lu %lu %lu", now(CLOCK_PROCESS_CPUTIME_ID) - before, bytes[0], bytes[1],
			 bytes[2]);
		say(line);
	}
}
