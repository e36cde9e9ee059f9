/*
 * THREADS threads, more than CPUs, allocate and free ROUNDS times each, all at once and each from a different
 * depth: thread N is thread_main -> dive (N + 1 times) -> allocate -> malloc. All blocks are freed.
 */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include "../handshake.h"
#include "../keep.h"

#define MAX_THREADS 64

static pthread_barrier_t start;
static long rounds;

NOINLINE static void allocate(long depth)
{
	for (long round = 0; round < rounds; round++) {
		void *volatile block = malloc(16 + depth);

		if (round % 64 == depth)
			sched_yield();
		free(block);
	}
}

NOINLINE static long dive(long depth, long left)
{
	if (left > 0)
		return dive(depth, left - 1) + 1;
	allocate(depth);
	return 0;
}

NOINLINE static void *thread_main(void *argument)
{
	pthread_barrier_wait(&start);
	return (void *)dive((intptr_t)argument, (intptr_t)argument);
}

int main(int argc, char **argv)
{
	long threads = argc > 2 ? atol(argv[1]) : 1;
	pthread_t handles[MAX_THREADS];

	rounds = argc > 2 ? atol(argv[2]) : 1;
	pthread_barrier_init(&start, NULL, threads + 1);
	for (long thread = 0; thread < threads; thread++)
		pthread_create(&handles[thread], NULL, thread_main, (void *)thread);
	rendezvous("ready");
	pthread_barrier_wait(&start);
	for (long thread = 0; thread < threads; thread++)
		pthread_join(handles[thread], NULL);
	rendezvous("done");
	return 0;
}
