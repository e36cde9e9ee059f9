/*
 * Leaks from a frame that has both a dynamic size and a larger alignment than the stack: with -O2 -mavx2 the
 * compiler reaches the caller through a saved argument pointer (DRAP), and CFI says so by an expression.
 */
#include <alloca.h>
#include "../handshake.h"
#include "../keep.h"

NOINLINE static void touch(volatile char *bytes, volatile double *vector)
{
	bytes[0] = 1;
	vector[0] = 2;
}

NOINLINE static int realigned(int a, int b, int c, int d, int e, int f, int on_stack, int count)
{
	double vector[4] __attribute__((aligned(64)));
	char *bytes = alloca(count);

	touch(bytes, vector);
	LEAK();
	touch(bytes, vector);
	return a + b + c + d + e + f + on_stack + bytes[0];
}

int main(int argc, char **argv)
{
	volatile int sum = 0;

	(void)argv;
	rendezvous("ready");
	sum += realigned(1, 2, 3, 4, 5, 6, argc, 100 * argc);
	rendezvous("done");
	return 0;
}
