/*
 * Rounds of a program of the chaos test, until it has done ROUNDS of them, or, if that is 0, until the file STOP
 * exists. Each round prints a line that depends only on that round and on the previous ones. So the output of a program
 * that was disturbed can be reproduced without the disturbance.
 *
 * usage: PROGRAM ROUNDS STOP …
 */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Exit status of programs that did all their rounds. */
#define DONE 42

struct rounds {
	uint64_t wanted, done, sum;
	const char *stop;
};

static inline struct rounds rounds_of(char **argv)
{
	return (struct rounds){ .wanted = strtoull(argv[1], NULL, 10), .stop = argv[2] };
}

static inline int goes_on(const struct rounds *rounds)
{
	if (rounds->wanted)
		return rounds->done < rounds->wanted;
	/* Others need the processor too. */
	usleep(2000);
	return access(rounds->stop, F_OK) != 0;
}

static inline void add(struct rounds *rounds, uint64_t value)
{
	rounds->sum = (rounds->sum ^ value) * 0x100000001b3;
}

static inline void add_text(struct rounds *rounds, const char *text)
{
	for (; *text; text++)
		add(rounds, (unsigned char)*text);
}

static inline void end_round(struct rounds *rounds)
{
	rounds->done++;
	printf("%llu %016llx\n", (unsigned long long)rounds->done, (unsigned long long)rounds->sum);
	fflush(stdout);
}
