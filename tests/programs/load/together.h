/*
 * Threads that work at the same time and end only when told to: a thread that ends passes its cache of freed
 * blocks to free once more (glibc 2.36, tcache_thread_shutdown). For C and C++.
 */
#pragma once
#include <pthread.h>

static pthread_barrier_t start, worked, end;

/* Waits for all threads; each thread calls begin_work before its work, and end_work behind it. */
static inline void begin_work(void)
{
	pthread_barrier_wait(&start);
}

static inline void end_work(void)
{
	pthread_barrier_wait(&worked);
	pthread_barrier_wait(&end);
}

/* Threads that wait for `do_work`; each gets its number. */
static inline void start_threads(pthread_t *handles, long threads, void *(*thread_main)(void *))
{
	pthread_barrier_init(&start, NULL, threads + 1);
	pthread_barrier_init(&worked, NULL, threads + 1);
	pthread_barrier_init(&end, NULL, threads + 1);
	for (long thread = 0; thread < threads; thread++)
		pthread_create(&handles[thread], NULL, thread_main, (void *)thread);
}

/* Lets all of them work, and waits until they are done. */
static inline void do_work(void)
{
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&worked);
}

static inline void end_threads(pthread_t *handles, long threads)
{
	pthread_barrier_wait(&end);
	for (long thread = 0; thread < threads; thread++)
		pthread_join(handles[thread], NULL);
}
