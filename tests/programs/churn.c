/*
 * THREADS threads allocate ROUNDS blocks each and free them all, half of them the blocks of another thread:
 * each round puts a block into a slot that all share and frees what was there. Nothing is left. The threads
 * end after "done" only: a thread that ends passes its cache of freed blocks to free once more (glibc 2.36,
 * tcache_thread_shutdown).
 */
#include <pthread.h>
#include "handshake.h"
#include "keep.h"

#define MAX_THREADS 64
#define SLOTS 97

static pthread_barrier_t start, worked, end;
static long rounds;
static void *slots[SLOTS];

NOINLINE static void *allocate(long round)
{
	return malloc(1 + round % 300);
}

NOINLINE static void *thread_main(void *argument)
{
	pthread_barrier_wait(&start);
	for (long round = 0; round < rounds; round++) {
		void *block = allocate(round);

		if (round % 2)
			block = __atomic_exchange_n(&slots[round % SLOTS], block, __ATOMIC_ACQ_REL);
		free(block);
	}
	pthread_barrier_wait(&worked);
	pthread_barrier_wait(&end);
	return argument;
}

int main(int argc, char **argv)
{
	long threads = argc > 2 ? atol(argv[1]) : 1;
	pthread_t handles[MAX_THREADS];

	rounds = argc > 2 ? atol(argv[2]) : 1;
	pthread_barrier_init(&start, NULL, threads + 1);
	pthread_barrier_init(&worked, NULL, threads + 1);
	pthread_barrier_init(&end, NULL, threads + 1);
	for (long thread = 0; thread < threads; thread++)
		pthread_create(&handles[thread], NULL, thread_main, NULL);
	rendezvous("ready");
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&worked);
	for (int slot = 0; slot < SLOTS; slot++)
		free(slots[slot]);
	rendezvous("done");
	pthread_barrier_wait(&end);
	for (long thread = 0; thread < threads; thread++)
		pthread_join(handles[thread], NULL);
	return 0;
}
