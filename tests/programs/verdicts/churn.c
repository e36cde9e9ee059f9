/*
 * Threads that allocate, resize and free blocks without end, and always have a pointer to each in a table: none of
 * their blocks is ever lost. They mostly work on few of the blocks, so that most blocks stay for a while.
 *
 * usage: churn BUSY    number of busy ones of each thread's 4000 blocks
 *
 * It says `ready` once each thread has made its blocks.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../handshake.h"

enum { THREADS = 3, BLOCKS = 4000, LARGE = 140000, ROUNDS_UNTIL_REST = 1000, ROUNDS_UNTIL_OTHER = 2000 };

static pthread_barrier_t ready;
static size_t busy;

static size_t random_below(uint64_t *state, size_t limit)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % limit;
}

static size_t random_size(uint64_t *state)
{
	switch (random_below(state, 64)) {
	case 0:
		return LARGE + random_below(state, LARGE);
	case 1:
		return 8 + random_below(state, 60000);
	default:
		return 8 + random_below(state, 600);
	}
}

static void change(void *volatile *place, uint64_t *state)
{
	size_t size = random_size(state);
	void *block;

	if (*place && random_below(state, 3)) {
		free(*place);
		*place = NULL;
		return;
	}
	block = *place ? realloc(*place, size) :
	        random_below(state, 5) ? malloc(size) : aligned_alloc(64u << random_below(state, 8), size);
	if (!block)
		_exit(1);
	*place = memset(block, 0, 8);
}

static void *work(void *argument)
{
	void *volatile *table = calloc(BLOCKS, sizeof(*table));
	uint64_t state = (uintptr_t)argument;

	for (size_t at = 0; at < BLOCKS; at++)
		change(table + at, &state);
	pthread_barrier_wait(&ready);
	for (size_t round = 1;; round++) {
		change(table + random_below(&state, round % ROUNDS_UNTIL_OTHER ? busy : BLOCKS), &state);
		if (round % ROUNDS_UNTIL_REST == 0)
			usleep(1);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	pthread_t thread;

	busy = count > 1 ? strtoul(arguments[1], NULL, 10) : 0;
	if (busy == 0 || busy > BLOCKS)
		return 2;
	pthread_barrier_init(&ready, NULL, THREADS + 1);
	for (uintptr_t number = 1; number <= THREADS; number++)
		if (pthread_create(&thread, NULL, work, (void *)number) != 0)
			return 1;
	pthread_barrier_wait(&ready);
	rendezvous("ready");
	_exit(0);
}
