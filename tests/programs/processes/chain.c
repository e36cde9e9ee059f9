/*
 * Executes the program in its arguments, or, at the end of a chain, leaks at once, and ends.
 *
 * usage: chain [PROGRAM ARGUMENT…]
 */
#include <stdlib.h>
#include <unistd.h>
#include "../keep.h"

NOINLINE static void early(void)
{
	kept = malloc(40);
}

NOINLINE static void late(void)
{
	kept = malloc(24);
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		execvp(argv[1], argv + 1);
		return 127;
	}
	for (int block = 0; block < 25; block++)
		early();
	for (int block = 0; block < 100; block++)
		late();
	return 0;
}
