/* Leaks argument 1 blocks of 24 bytes, each from `leak`, which `even` and `odd` call in turn. */
#include "../handshake.h"
#include "../keep.h"

NOINLINE static void leak(void)
{
	kept = malloc(24);
}

NOINLINE static void even(void)
{
	leak();
	*(volatile char *)kept = 1;
}

NOINLINE static void odd(void)
{
	leak();
	*(volatile char *)kept = 2;
}

int main(int argc, char **argv)
{
	int blocks = argc > 1 ? atoi(argv[1]) : 1;

	rendezvous("ready");
	for (int block = 0; block < blocks; block++)
		block % 2 ? odd() : even();
	rendezvous("done");
	return 0;
}
