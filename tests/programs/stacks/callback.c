/* Leaks in a callback of the C library: main -> sort_numbers -> qsort -> ... -> compare -> malloc. */
#include "../handshake.h"
#include "../keep.h"

NOINLINE static int compare(const void *a, const void *b)
{
	LEAK();
	return *(const int *)a - *(const int *)b;
}

NOINLINE static void sort_numbers(int *numbers, size_t count)
{
	qsort(numbers, count, sizeof(*numbers), compare);
	numbers[0]++;
}

int main(void)
{
	/* Two numbers: one call of compare. */
	int numbers[] = {2, 1};

	rendezvous("ready");
	sort_numbers(numbers, 2);
	rendezvous("done");
	return 0;
}
