/*
 * Threads that end in the middle of an allocator call: each allocates without end until a signal ends the thread,
 * and not the process, at any point. THREADS threads, one after the other. Afterwards leaks one block.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include "../handshake.h"
#include "../keep.h"

static atomic_int running, ended;

static void end_thread(int number)
{
	(void)number;
	atomic_fetch_add(&ended, 1);
	syscall(SYS_exit, 0);
}

/* Larger than any object can be: refused before a lock is taken, which would remain taken. */
NOINLINE static void *allocate_for_long(void *unused)
{
	volatile size_t huge = (size_t)1 << 63;

	atomic_fetch_add(&running, 1);
	for (;;)
		kept = malloc(huge);
	return unused;
}

NOINLINE static void after_threads(void)
{
	LEAK();
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;

	signal(SIGUSR1, end_thread);
	rendezvous("ready");
	for (int number = 0; number < threads; number++) {
		pthread_t thread;

		pthread_create(&thread, NULL, allocate_for_long, NULL);
		while (atomic_load(&running) <= number)
			usleep(100);
		usleep(1000);
		pthread_kill(thread, SIGUSR1);
		while (atomic_load(&ended) <= number)
			usleep(100);
	}
	after_threads();
	rendezvous("done");
	return 0;
}
