/*
 * Allocates below frames that have a larger alignment than the stack, a dynamic size, and callee-saved registers
 * in use, one above another: CFI reaches the callers through saved argument pointers. With PLAIN set, the frames
 * are not realigned.
 */
#include <alloca.h>
#include "../handshake.h"
#include "../keep.h"

#ifdef PLAIN
#define ALIGNMENT(bytes)
#else
#define ALIGNMENT(bytes) __attribute__((aligned(bytes)))
#endif

NOINLINE static int touch(volatile char *bytes, volatile double *vector)
{
	bytes[0] = 1;
	vector[0] = 2;
	return 1;
}

NOINLINE static int no_dynamic_part(int a, int b, int c)
{
	double vector[8] ALIGNMENT(128);
	char bytes[8];
	int sum = touch(bytes, vector);

	LEAK();
	return sum + touch(bytes, vector) + a * b + c;
}

NOINLINE static int both(int a, int b, int c, int d, int e, int f, int g, int h)
{
	double vector[4] ALIGNMENT(64);
	char *bytes = alloca(a * 16);
	int one = touch(bytes, vector), two = touch(bytes, vector), three = touch(bytes, vector);
	int four = touch(bytes, vector), five = touch(bytes, vector);

	LEAK();
	one += no_dynamic_part(a, b, c);
	two *= touch(bytes, vector);
	if (d > 0)
		three += both(a + 1, b, c, d - 1, e, f, g, h);
	return one + two * three + four - five + a + b + c + d + e + f + g + h;
}

NOINLINE static int plain(int a)
{
	int sum = both(a, 2, 3, 3, 5, 6, 7, 8);

	LEAK();
	return sum + a;
}

int main(int argc, char **argv)
{
	volatile int sum = 0;

	(void)argv;
	rendezvous("ready");
	sum += plain(argc);
	rendezvous("done");
	return 0;
}
