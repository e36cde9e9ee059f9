/* Leaks under a frame of 300,000 bytes: more than fits in 16 bits, and more than any stack window. */
#include "../handshake.h"
#include "../keep.h"

NOINLINE static void leak(volatile char *bytes)
{
	LEAK();
	bytes[1]++;
}

NOINLINE static int big_frame(void)
{
	volatile char bytes[300000];

	bytes[0] = 1;
	bytes[sizeof(bytes) - 1] = 2;
	leak(bytes);
	return bytes[0];
}

int main(void)
{
	volatile int sum = 0;

	rendezvous("ready");
	sum += big_frame();
	rendezvous("done");
	return 0;
}
