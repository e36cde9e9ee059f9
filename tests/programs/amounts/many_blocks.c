/*
 * BLOCKS blocks of 24 bytes, linked, each with the address of the previous one; after "held", all but every thousandth
 * are freed.
 */
#include <stdlib.h>
#include "../handshake.h"
#include "../keep.h"

struct block {
	struct block *before;
	long unused[2];
};

static struct block *last;

NOINLINE static void hold(long blocks)
{
	while (blocks--) {
		struct block *block = malloc(sizeof(*block));

		if (!block)
			abort();
		block->before = last;
		last = block;
	}
}

NOINLINE static void let_go(void)
{
	for (long number = 1; last; number++) {
		struct block *before = last->before;

		if (number % 1000)
			free(last);
		last = before;
	}
}

int main(int argc, char **argv)
{
	rendezvous("ready");
	hold(argc > 1 ? atol(argv[1]) : 1000);
	rendezvous("held");
	let_go();
	rendezvous("done");
	return 0;
}
