/*
 * Holds 16 blocks of 64 KiB, and at each line "BLOCKS BYTES MICROSECONDS" that many more, for that long after the last
 * of them; with -1 forever. Answers with the most bytes that it has held so far, by its own count.
 */
#include <stdio.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define MAX_BLOCKS 4096

static unsigned long held, highest;

static NOINLINE void *counted(void *block, unsigned long bytes)
{
	held += bytes;
	if (held > highest)
		highest = held;
	return block;
}

static NOINLINE void hold_base(void)
{
	for (int number = 0; number < 16; number++)
		kept = counted(malloc(1 << 16), 1 << 16);
}

static NOINLINE void keep_later(long blocks, long bytes)
{
	for (long number = 0; number < blocks; number++)
		kept = counted(malloc(bytes), bytes);
}

static NOINLINE void spike(long blocks, long bytes, long microseconds)
{
	static void *all[MAX_BLOCKS];
	struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};

	for (long number = 0; number < blocks; number++)
		all[number] = counted(malloc(bytes), bytes);
	if (microseconds)
		nanosleep(&time, NULL);
	for (long number = 0; number < blocks; number++) {
		free(all[number]);
		held -= bytes;
	}
}

/* Reads a line; ends the program at the end of the input. */
static void read_line(char *line, int size)
{
	int length = 0;

	while (read(STDIN_FILENO, line + length, 1) == 1 && length < size - 1) {
		if (line[length] == '\n') {
			line[length] = 0;
			return;
		}
		length++;
	}
	_exit(0);
}

int main(void)
{
	char line[64], answer[32], *end;

	say("ready");
	read_line(line, sizeof(line));
	hold_base();
	for (;;) {
		long blocks, bytes, microseconds;

		snprintf(answer, sizeof(answer), "%lu", highest);
		say(answer);
		read_line(line, sizeof(line));
		blocks = strtol(line, &end, 10);
		bytes = strtol(end, &end, 10);
		microseconds = strtol(end, NULL, 10);
		if (blocks > MAX_BLOCKS)
			return 1;
		if (microseconds < 0)
			keep_later(blocks, bytes);
		else
			spike(blocks, bytes, microseconds);
	}
}
