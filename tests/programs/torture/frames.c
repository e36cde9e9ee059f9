/* Allocates below frames of 70,000 bytes and of 1.5 MiB, and of both, with dynamic parts between. */
#include <alloca.h>
#include "../handshake.h"
#include "../keep.h"

#define SMALL 70000
#define LARGE (3 << 19)

NOINLINE static void touch(volatile char *bytes, int size)
{
	bytes[0] = bytes[size - 1] = 1;
}

NOINLINE static int small(int count)
{
	char bytes[SMALL];

	touch(bytes, SMALL);
	LEAK();
	return bytes[0] + count;
}

NOINLINE static int dynamic(int count)
{
	char *bytes = alloca(SMALL + 16 * count);

	touch(bytes, SMALL);
	return small(count) + bytes[0];
}

NOINLINE static int large(int count)
{
	char bytes[LARGE];

	touch(bytes, LARGE);
	LEAK();
	return bytes[0] + small(count) + dynamic(count);
}

int main(int argc, char **argv)
{
	volatile int sum = 0;

	(void)argv;
	rendezvous("ready");
	sum += small(argc);
	sum += dynamic(argc);
	sum += large(argc);
	rendezvous("done");
	return 0;
}
