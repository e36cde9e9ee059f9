/*
 * Leaks below two functions without CFI but with frame pointers:
 * main -> outer_without_cfi -> inner_without_cfi -> leak -> malloc. Compiled twice, see the test: with PART
 * set it consists of these two functions.
 */
#include "../handshake.h"
#include "../keep.h"

int outer_without_cfi(int number);
int leak(int number);

#ifdef PART
NOINLINE static int inner_without_cfi(int number)
{
	return leak(number) + 1;
}

NOINLINE int outer_without_cfi(int number)
{
	return inner_without_cfi(number + 1) + 1;
}
#else
NOINLINE int leak(int number)
{
	LEAK();
	return number;
}

int main(int argc, char **argv)
{
	volatile int sum = 0;

	(void)argv;
	rendezvous("ready");
	sum += outer_without_cfi(argc);
	rendezvous("done");
	return sum;
}
#endif
