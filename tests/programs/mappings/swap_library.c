/*
 * A library for swap.c: outer -> inner_X -> malloc, in frames of SLOTS words that are full of return addresses.
 * Two builds with SLOTS above 15 have the same code at the same place, but for the sizes of their frames.
 */
#include "../keep.h"

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define inner NAME(inner_, X)
#define outer NAME(outer_, X)
#define init NAME(init_, X)

static volatile int calls;

/* Allocates while the library is being loaded. */
__attribute__((constructor)) static void init(void)
{
	void *volatile block = malloc(48);

	free(block);
}

NOINLINE static void fill(void *volatile *words, void *garbage)
{
	for (int slot = 0; slot < SLOTS; slot++)
		words[slot] = garbage;
}

NOINLINE static void inner(void *garbage)
{
	void *volatile words[SLOTS];
	void *volatile block;

	fill(words, garbage);
	block = malloc(64);
	free(block);
	calls += words[SLOTS - 1] != NULL;
}

NOINLINE static int outer(void *garbage)
{
	void *volatile words[SLOTS];

	fill(words, garbage);
	inner(garbage);
	return words[0] != NULL;
}

int (*const entry)(void *) = outer;
