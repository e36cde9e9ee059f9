/*
 * KEPT blocks that stay, then, while THREADS threads replace blocks as fast as they can, one more block that is never
 * freed every 10 ms; at the end the threads have freed all of theirs. All threads run from the start and end
 * with the program: nothing else allocates.
 */
#include <pthread.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define RING 64

static pthread_barrier_t start, stop;
static volatile int stopping;

NOINLINE static void keep_block(void)
{
	kept = malloc(24);
}

NOINLINE static void *churn_block(long round)
{
	return malloc(1 + round % 300);
}

NOINLINE static void leak_block(void)
{
	kept = malloc(1000);
}

NOINLINE static void *churn(void *argument)
{
	void *ring[RING] = { 0 };

	pthread_barrier_wait(&start);
	for (long round = 0; !stopping; round++) {
		free(ring[round % RING]);
		ring[round % RING] = churn_block(round);
	}
	for (int slot = 0; slot < RING; slot++)
		free(ring[slot]);
	pthread_barrier_wait(&stop);
	for (;;)
		pause();
	return argument;
}

NOINLINE static void *leak(void *argument)
{
	pthread_barrier_wait(&start);
	while (!stopping) {
		struct timespec time = { .tv_nsec = 10000000 };

		leak_block();
		nanosleep(&time, NULL);
	}
	pthread_barrier_wait(&stop);
	for (;;)
		pause();
	return argument;
}

int main(int argc, char **argv)
{
	long blocks = argc > 1 ? atol(argv[1]) : 0;
	long threads = argc > 2 ? atol(argv[2]) : 0;
	pthread_t thread;

	pthread_barrier_init(&start, NULL, threads + 2);
	pthread_barrier_init(&stop, NULL, threads + 2);
	for (long number = 0; number < threads; number++)
		pthread_create(&thread, NULL, churn, NULL);
	pthread_create(&thread, NULL, leak, NULL);
	rendezvous("ready");
	/* One call, and so one stack: gcc 14 unrolls this at -O2. */
#pragma GCC unroll 1
	for (long block = 0; block < blocks; block++)
		keep_block();
	rendezvous("kept");
	pthread_barrier_wait(&start);
	rendezvous("churning");
	stopping = 1;
	pthread_barrier_wait(&stop);
	rendezvous("quiet");
	_exit(0);
}
