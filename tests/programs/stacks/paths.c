/*
 * One block from each of 2^BITS stacks: below main, each bit of the path selects a call of `left` or of `right`, the
 * lowest bit outermost. The block's size is 1 more than the path.
 */
#include "../handshake.h"
#include "../keep.h"

NOINLINE static int left(long path, long rest, int bits);
NOINLINE static int right(long path, long rest, int bits);

static inline __attribute__((always_inline)) int go_on(long path, long rest, int bits)
{
	if (!bits) {
		kept = malloc(1 + path);
		return 1;
	}
	return 1 + (rest & 1 ? right : left)(path, rest >> 1, bits - 1);
}

NOINLINE static int left(long path, long rest, int bits)
{
	return go_on(path, rest, bits);
}

NOINLINE static int right(long path, long rest, int bits)
{
	return go_on(path, rest, bits) + 1;
}

int main(int argc, char **argv)
{
	int bits = argc > 1 ? atoi(argv[1]) : 1;
	volatile int calls = 0;

	rendezvous("ready");
	for (long path = 0; path < 1L << bits; path++)
		calls += go_on(path, path, bits);
	rendezvous("done");
	return 0;
}
