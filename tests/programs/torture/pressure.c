/*
 * 64 threads allocate and free ROUNDS times each, on stacks that identify their thread: `path` is the thread and one of
 * eight variants, each of its bits one call of `left` or `right`, below as many calls of `deeper` as the thread's
 * number plus one; and its block has 16 + `path` bytes. They are preempted at every turn: they differ in
 * policy and priority, yield, get signals, and one more thread, with real-time priority, sleeps and wakes all the time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define THREADS 64
#define VARIANT_BITS 3
#define PATH_BITS (6 + VARIANT_BITS)

static pthread_barrier_t start, worked, end;
static long rounds;
static volatile int over;

NOINLINE static long allocate(long path)
{
	void *volatile block = malloc(16 + path);

	free(block);
	return 1;
}

NOINLINE static long right(long path, long bits);

NOINLINE static long left(long path, long bits)
{
	if (!bits)
		return allocate(path) + 1;
	if (path >> (bits - 1) & 1)
		return right(path, bits - 1) + 2;
	return left(path, bits - 1) + 3;
}

NOINLINE static long right(long path, long bits)
{
	volatile long room[12];

	room[bits] = bits;
	if (!bits)
		return allocate(path) + room[bits];
	if (path >> (bits - 1) & 1)
		return right(path, bits - 1) + room[bits];
	return left(path, bits - 1) + room[bits] + 1;
}

NOINLINE static long deeper(long path, long left_to_go)
{
	if (left_to_go)
		return deeper(path, left_to_go - 1) + 1;
	if (path >> (PATH_BITS - 1) & 1)
		return right(path, PATH_BITS - 1) + 1;
	return left(path, PATH_BITS - 1) + 2;
}

static void on_alarm(int number)
{
	(void)number;
}

static void differ(long thread)
{
	struct sched_param priority = {.sched_priority = 1 + thread % 3};

	if (thread % 8 == 7)
		pthread_setschedparam(pthread_self(), SCHED_RR, &priority);
	else
		setpriority(PRIO_PROCESS, syscall(SYS_gettid), thread % 20);
}

static void *thread_main(void *argument)
{
	long thread = (intptr_t)argument;

	differ(thread);
	pthread_barrier_wait(&start);
	for (long round = 0; round < rounds; round++) {
		deeper(thread << VARIANT_BITS | round % (1 << VARIANT_BITS), thread);
		if (round % 32 == thread % 32)
			sched_yield();
	}
	pthread_barrier_wait(&worked);
	/* Blocks that a thread frees at its end are freed after "done". */
	pthread_barrier_wait(&end);
	return argument;
}

static void *disturb(void *argument)
{
	struct sched_param priority = {.sched_priority = 50};
	struct timespec moment = {0, 50000};

	pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority);
	while (!over)
		nanosleep(&moment, NULL);
	return argument;
}

int main(int argc, char **argv)
{
	struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
	struct sigaction handler = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	pthread_t threads[THREADS], disturber;

	rounds = argc > 1 ? atol(argv[1]) : 1;
	pthread_barrier_init(&start, NULL, THREADS + 1);
	pthread_barrier_init(&worked, NULL, THREADS + 1);
	pthread_barrier_init(&end, NULL, THREADS + 1);
	sigaction(SIGALRM, &handler, NULL);
	pthread_create(&disturber, NULL, disturb, NULL);
	for (long thread = 0; thread < THREADS; thread++)
		pthread_create(&threads[thread], NULL, thread_main, (void *)thread);
	rendezvous("ready");
	setitimer(ITIMER_REAL, &often, NULL);
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&worked);
	setitimer(ITIMER_REAL, &never, NULL);
	over = 1;
	rendezvous("done");
	pthread_barrier_wait(&end);
	for (long thread = 0; thread < THREADS; thread++)
		pthread_join(threads[thread], NULL);
	return 0;
}
