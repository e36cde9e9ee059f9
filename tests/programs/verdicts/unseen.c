/*
 * Blocks that are freed with stale pointers in them to lost ones, and blocks that only others hold, which are where some were freed:
 * by a function that only this program knows, if its allocator has it. To be run with the library of tiny_malloc.c.
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

/* Volatile, as what it holds: nothing reads it. */
static void *volatile *volatile holders[BLOCKS];

/* Twice as many as are held later: those that are freed last are given out again. */
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

/* Overwrites what calls have left on the stack. */
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
