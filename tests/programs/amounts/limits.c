/*
 * Blocks at the limits of a size filter from 100 to 200, and reallocations across them. Each function is one site.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include "../handshake.h"
#include "../keep.h"

#define SITE(name) NOINLINE static void name(void)

static volatile size_t huge = (size_t)1 << 62;
static void *volatile null;

SITE(below) { kept = malloc(99); }
SITE(least) { kept = malloc(100); }
SITE(most) { kept = malloc(200); }
SITE(above) { kept = malloc(201); }
SITE(above_freed) { kept = malloc(201); free(kept); }
SITE(within_freed) { kept = malloc(150); free(kept); }
SITE(outgrown) { kept = malloc(151); }
SITE(outgrows) { kept = realloc(kept, 300); }
SITE(too_large) { kept = malloc(301); }
SITE(shrunk) { kept = realloc(kept, 152); }
SITE(survivor) { kept = malloc(153); }
SITE(fails) { void *block = realloc(kept, huge); if (block) kept = block; }
/* realloc(NULL, …) becomes a call of malloc for the same size, memalign may become one for more. */
SITE(aligned_below) { kept = memalign(64, 99); }
SITE(aligned_little_below) { kept = memalign(16, 99); }
SITE(realloc_below) { kept = realloc(null, 98); }
SITE(realloc_within) { kept = realloc(null, 154); }
/* A call of another function from the same place as the previous one, which was not recorded. */
NOINLINE static void *call(void *(*function)(size_t), size_t size)
{
	void *block = function(size);

	kept = block;
	return block;
}
SITE(by_pointer)
{
	for (int turn = 0; turn < 10; turn++)
		call(turn % 2 ? valloc : malloc, turn % 2 ? 155 : 10);
}

int main(void)
{
	rendezvous("ready");
	below();
	least();
	most();
	above();
	above_freed();
	within_freed();
	outgrown();
	outgrows();
	too_large();
	shrunk();
	survivor();
	fails();
	aligned_below();
	aligned_little_below();
	realloc_below();
	realloc_within();
	by_pointer();
	rendezvous("done");
	return 0;
}
