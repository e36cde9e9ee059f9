/*
 * THREADS threads allocate ROUNDS blocks each and free them all, half of them the blocks of another thread:
 * each round puts a block into a slot that all share and frees the one that was there. Nothing is left. Threads end
 * only after "done", see together.h.
 */
#include "../handshake.h"
#include "../keep.h"
#include "together.h"

#define MAX_THREADS 64
#define SLOTS 97

static long rounds;
static void *slots[SLOTS];

NOINLINE static void *allocate(long round)
{
	return malloc(1 + round % 300);
}

NOINLINE static void *thread_main(void *argument)
{
	begin_work();
	for (long round = 0; round < rounds; round++) {
		void *block = allocate(round);

		if (round % 2)
			block = __atomic_exchange_n(&slots[round % SLOTS], block, __ATOMIC_ACQ_REL);
		free(block);
	}
	end_work();
	return argument;
}

int main(int argc, char **argv)
{
	long threads = argc > 2 ? atol(argv[1]) : 1;
	pthread_t handles[MAX_THREADS];

	rounds = argc > 2 ? atol(argv[2]) : 1;
	start_threads(handles, threads, thread_main);
	rendezvous("ready");
	do_work();
	for (int slot = 0; slot < SLOTS; slot++)
		free(slots[slot]);
	rendezvous("done");
	end_threads(handles, threads);
	return 0;
}
