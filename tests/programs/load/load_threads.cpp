/*
 * THREADS threads allocate and free ROUNDS blocks each, one at a time, and yield in between; WAY is new or malloc.
 * Nothing is left. Threads end only after "done", see together.h.
 */
#include <sched.h>
#include <cstdlib>
#include <cstring>
#include <new>
#include "../handshake.h"
#include "together.h"

#define NOINLINE __attribute__((noipa))

static long rounds;
static bool by_new;

NOINLINE static void *allocate(size_t size)
{
	return by_new ? ::operator new(size) : malloc(size);
}

NOINLINE static void release(void *block)
{
	if (by_new)
		::operator delete(block);
	else
		free(block);
}

NOINLINE static void *thread_main(void *argument)
{
	begin_work();
	for (long round = 0; round < rounds; round++) {
		void *block = allocate(1 + round % 500);

		if (round % 64 == 0)
			sched_yield();
		release(block);
	}
	end_work();
	return argument;
}

int main(int argc, char **argv)
{
	long threads = argc > 3 ? atol(argv[2]) : 1;
	pthread_t *handles = new pthread_t[threads];

	by_new = argc > 1 && !strcmp(argv[1], "new");
	rounds = argc > 3 ? atol(argv[3]) : 1;
	start_threads(handles, threads, thread_main);
	rendezvous("ready");
	do_work();
	rendezvous("done");
	end_threads(handles, threads);
	rendezvous("joined");
	return 0;
}
