/* Leaks at the bottom of N calls of `recurse`, N being the argument: main -> recurse (N times) -> malloc. */
#include "../handshake.h"
#include "../keep.h"

NOINLINE static int recurse(int depth)
{
	if (depth > 1)
		return recurse(depth - 1) + 1;
	LEAK();
	return 1;
}

int main(int argc, char **argv)
{
	volatile int depth = argc > 1 ? atoi(argv[1]) : 1;

	rendezvous("ready");
	depth = recurse(depth);
	rendezvous("done");
	return 0;
}
