/*
 * Freed blocks with stale pointers to lost blocks, and blocks that only others hold, which are in memory of freed ones
 * and come from a function that only this program knows, if there is one. To be run with tiny_malloc.c's library.
 */
#include <stdlib.h>

#include "../handshake.h"

enum { BLOCKS = 20, SIZE = 200, WORD = 10 };

#define NOINLINE __attribute__((noinline))
/* The barrier keeps the function on the stack while malloc runs. */
#define KIND(name, size)                                                                                               \
	NOINLINE void *name(void)                                                                                      \
	{                                                                                                              \
		void *block = malloc(size);                                                                            \
                                                                                                                       \
		asm volatile("" : : : "memory");                                                                       \
		return block;                                                                                          \
	}

KIND(lost_stale, 64)
KIND(held_by_other, 64)
KIND(holder, SIZE)

__attribute__((weak)) void *other_malloc(size_t size);

/* Volatile, and so are their contents: nothing reads them. */
static void *volatile *volatile holders[BLOCKS];

/* Twice as many blocks as are held later: those that are freed last are reused. */
NOINLINE static void leave(void)
{
	static void *volatile *all[2 * BLOCKS];

	for (int number = 0; number < 2 * BLOCKS; number++)
		all[number] = holder();
	for (int number = 0; number < 2 * BLOCKS; number++) {
		all[number][WORD] = number < BLOCKS ? lost_stale() : NULL;
		free((void *)all[number]);
		all[number] = NULL;
	}
}

NOINLINE static void hold(void)
{
	for (int number = 0; number < BLOCKS; number++) {
		holders[number] = other_malloc ? other_malloc(SIZE) : holder();
		holders[number][WORD] = held_by_other();
	}
}

/* Overwrites data that calls have left on the stack. */
NOINLINE static void clear_stack(void)
{
	volatile char deep[32 << 10];

	for (size_t at = 0; at < sizeof(deep); at++)
		deep[at] = 0;
}

int main(void)
{
	rendezvous("started");
	leave();
	hold();
	clear_stack();
	rendezvous("ready");
	return 0;
}
