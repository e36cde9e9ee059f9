/*
 * Fibers that wait in a function of a pool and go on in another thread, as in M:N runtimes: each call of pool_get ends
 * on another thread than it began on. Each fiber allocates ROUNDS blocks at each site.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <ucontext.h>
#include "../handshake.h"
#include "../keep.h"

#define FIBERS 8
#define ROUNDS 25

static ucontext_t fibers[FIBERS], threads[2];
static __thread int own_thread;
static char stacks[FIBERS][1 << 16];
static pthread_barrier_t turn;

/* Not inlined: a fiber must not cache the address of thread-local variables. */
NOINLINE static int thread_number(void)
{
	return own_thread;
}

NOINLINE static void wait_for_turn(int fiber)
{
	swapcontext(&fibers[fiber], &threads[thread_number()]);
}

NOINLINE void *pool_get(size_t size, int fiber)
{
	void *block = malloc(size);

	wait_for_turn(fiber);
	*(volatile char *)block = 1;
	return block;
}

NOINLINE void pool_put(void *block)
{
	free(block);
}

#define SITE(name) NOINLINE static void name(int fiber)

SITE(get_kept) { kept = pool_get(64, fiber); }
SITE(get_freed) { pool_put(pool_get(32, fiber)); }
/* Called while other fibers wait in pool_get, some on stacks above this one. */
SITE(malloc_kept) { (void)fiber; kept = malloc(16); }

static void run_fiber(int fiber)
{
	for (int round = 0; round < ROUNDS; round++) {
		get_kept(fiber);
		malloc_kept(fiber);
		get_freed(fiber);
	}
	for (;;)
		wait_for_turn(fiber);
}

static void *run_thread(void *number)
{
	own_thread = (int)(long)number;
	for (int round = 0; round < 2 * ROUNDS + 2; round++) {
		for (int fiber = 0; fiber < FIBERS; fiber++)
			if ((fiber + round) % 2 == thread_number())
				swapcontext(&threads[thread_number()], &fibers[fiber]);
		pthread_barrier_wait(&turn);
	}
	return NULL;
}

int main(void)
{
	pthread_t other;

	pthread_barrier_init(&turn, NULL, 2);
	for (int fiber = 0; fiber < FIBERS; fiber++) {
		getcontext(&fibers[fiber]);
		fibers[fiber].uc_stack.ss_sp = stacks[fiber];
		fibers[fiber].uc_stack.ss_size = sizeof(stacks[fiber]);
		makecontext(&fibers[fiber], (void (*)(void))run_fiber, 1, fiber);
	}
	rendezvous("ready");
	pthread_create(&other, NULL, run_thread, (void *)1L);
	run_thread(NULL);
	pthread_join(other, NULL);
	rendezvous("done");
	return 0;
}
