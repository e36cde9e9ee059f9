/*
 * THREADS threads make and end ROUNDS blocks each, one at a time, and yield in between; WAY is new or malloc. Nothing
 * is left. The threads end after "done" only: a thread that ends passes its cache of freed blocks to free once
 * more (glibc 2.36, tcache_thread_shutdown).
 */
#include <pthread.h>
#include <sched.h>
#include <cstdlib>
#include <cstring>
#include <new>
#include "handshake.h"

#define NOINLINE __attribute__((noipa))

static pthread_barrier_t start, worked, end;
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
	pthread_barrier_wait(&start);
	for (long round = 0; round < rounds; round++) {
		void *block = allocate(1 + round % 500);

		if (round % 64 == 0)
			sched_yield();
		release(block);
	}
	pthread_barrier_wait(&worked);
	pthread_barrier_wait(&end);
	return argument;
}

int main(int argc, char **argv)
{
	long threads = argc > 3 ? atol(argv[2]) : 1;
	pthread_t *handles = new pthread_t[threads];

	by_new = argc > 1 && !strcmp(argv[1], "new");
	rounds = argc > 3 ? atol(argv[3]) : 1;
	pthread_barrier_init(&start, nullptr, threads + 1);
	pthread_barrier_init(&worked, nullptr, threads + 1);
	pthread_barrier_init(&end, nullptr, threads + 1);
	for (long thread = 0; thread < threads; thread++)
		pthread_create(&handles[thread], nullptr, thread_main, nullptr);
	rendezvous("ready");
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&worked);
	rendezvous("done");
	pthread_barrier_wait(&end);
	for (long thread = 0; thread < threads; thread++)
		pthread_join(handles[thread], nullptr);
	rendezvous("joined");
	return 0;
}
