/*
 * THREADS threads allocate ROUNDS blocks each; each goes into one of CELLS cells at random, and the block that was
 * there is freed, whichever thread allocated it. So life spans are random, and addresses soon belong to other threads.
 * All cells are full in the end. Blocks of a cell are of one size. Threads end only after "done", see together.h.
 */
#include "../handshake.h"
#include "../keep.h"
#include "together.h"

#define MAX_THREADS 64
#define MAX_CELLS 65536

static long rounds, cells;
static void *blocks[MAX_CELLS];

NOINLINE static void exchange(unsigned cell)
{
	free(__atomic_exchange_n(&blocks[cell], malloc(16 * (1 + cell % 4)), __ATOMIC_ACQ_REL));
}

NOINLINE static void *thread_main(void *argument)
{
	unsigned random = 2463534242u ^ (unsigned)(long)argument * 7919;

	begin_work();
	for (long round = 0; round < rounds; round++) {
		random ^= random << 13;
		random ^= random >> 17;
		random ^= random << 5;
		exchange((random >> 8) % cells);
	}
	end_work();
	return NULL;
}

int main(int argc, char **argv)
{
	long threads = argc > 3 ? atol(argv[1]) : 1;
	pthread_t handles[MAX_THREADS];

	rounds = argc > 3 ? atol(argv[2]) : 1;
	cells = argc > 3 ? atol(argv[3]) : 1;
	if (threads > MAX_THREADS || cells < 1 || cells > MAX_CELLS)
		return 1;
	start_threads(handles, threads, thread_main);
	rendezvous("ready");
	for (unsigned cell = 0; cell < cells; cell++)
		exchange(cell);
	do_work();
	rendezvous("done");
	end_threads(handles, threads);
	return 0;
}
