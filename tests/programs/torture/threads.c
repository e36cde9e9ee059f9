/*
 * Allocates in threads: joined, detached, started by another thread, ended by pthread_exit, cancelled, and made by
 * clone directly.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include "../handshake.h"
#include "../keep.h"

static char clone_stack[1 << 16];
static volatile int detached_done;
static int cloned_runs = 1;

static void on_cleanup(void *argument)
{
	LEAK();
	(void)argument;
}

static void *joined(void *argument)
{
	LEAK();
	return argument;
}

static void *detached(void *argument)
{
	LEAK();
	detached_done = 1;
	return argument;
}

NOINLINE static void leave(void)
{
	LEAK();
	pthread_exit(NULL);
}

static void *exiting(void *argument)
{
	pthread_cleanup_push(on_cleanup, NULL);
	leave();
	pthread_cleanup_pop(1);
	return argument;
}

static void *cancelled(void *argument)
{
	pthread_cleanup_push(on_cleanup, NULL);
	for (;;)
		pause();
	pthread_cleanup_pop(1);
	return argument;
}

static void *parent(void *argument)
{
	pthread_t child;

	pthread_create(&child, NULL, joined, argument);
	pthread_join(child, NULL);
	LEAK();
	return argument;
}

/* Shares its parent's thread-local memory, and its parent waits. */
static int cloned(void *argument)
{
	(void)argument;
	LEAK();
	return 0;
}

NOINLINE static void run(void *(*function)(void *), int cancel)
{
	pthread_t thread;

	pthread_create(&thread, NULL, function, NULL);
	if (cancel)
		pthread_cancel(thread);
	pthread_join(thread, NULL);
}

NOINLINE static void run_clone(void)
{
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
		    CLONE_CHILD_CLEARTID;

	clone(cloned, clone_stack + sizeof(clone_stack), flags, NULL, NULL, NULL, &cloned_runs);
	while (*(volatile int *)&cloned_runs)
		syscall(SYS_futex, &cloned_runs, FUTEX_WAIT, 1, NULL, NULL, 0);
}

int main(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	rendezvous("ready");
	run(joined, 0);
	run(parent, 0);
	run(exiting, 0);
	run(cancelled, 1);
	run_clone();
	pthread_create(&thread, &attributes, detached, NULL);
	while (!detached_done)
		sched_yield();
	rendezvous("done");
	return 0;
}
