/*
 * Blocks of several sizes, from threads of several names, which live for a while: it begins at a line; at the end, all
 * blocks are as the test expects, and nothing else allocates.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define HELD 40

static void *held[HELD];
static pthread_barrier_t of_worker, of_freer;

static void wait_for(long milliseconds)
{
	struct timespec time = { .tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

NOINLINE static void keep_block(size_t size)
{
	kept = malloc(size);
}

NOINLINE static void *temporary_block(void)
{
	return malloc(64);
}

NOINLINE static void *lasting_block(void)
{
	return malloc(64);
}

NOINLINE static void *resized_block(void)
{
	return malloc(64);
}

NOINLINE static void *handed_block(void)
{
	return malloc(64);
}

/* Frees blocks that others allocated, and allocates nothing. */
static void *free_all(void *unused)
{
	pthread_barrier_wait(&of_freer);
	for (int number = 0; number < HELD; number++)
		free(held[number]);
	pthread_barrier_wait(&of_freer);
	for (;;)
		pause();
	return unused;
}

static void *work(void *unused)
{
	pthread_setname_np(pthread_self(), "worker");
	pthread_barrier_wait(&of_worker);
	for (int number = 0; number < 20; number++)
		keep_block(4096);
	pthread_barrier_wait(&of_worker);
	for (;;)
		pause();
	return unused;
}

int main(void)
{
	pthread_t worker, freer;

	pthread_barrier_init(&of_worker, NULL, 2);
	pthread_barrier_init(&of_freer, NULL, 2);
	if (pthread_create(&worker, NULL, work, NULL) || pthread_create(&freer, NULL, free_all, NULL))
		return 1;
	rendezvous("ready");
	for (int number = 0; number < 100; number++)
		keep_block(24);
	for (int number = 0; number < 10; number++)
		keep_block(17 + number);
	for (int number = 0; number < 300; number++)
		free(temporary_block());
	for (int number = 0; number < HELD; number++)
		held[number] = lasting_block();
	wait_for(1500);
	for (int number = 0; number < HELD; number++)
		free(held[number]);
	for (int number = 0; number < 5; number++) {
		void *block = realloc(resized_block(), 5000);

		wait_for(200);
		free(block);
	}
	for (int number = 0; number < HELD; number++)
		held[number] = handed_block();
	/* The first turn starts the threads' work, the second waits for its end. */
	for (int turn = 0; turn < 2; turn++) {
		pthread_barrier_wait(&of_worker);
		pthread_barrier_wait(&of_freer);
	}
	say("done");
	for (;;)
		await_line();
}
