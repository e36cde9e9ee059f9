/* Leaks from a frame that keeps callee-saved registers. */
#include <stdlib.h>
#include "../keep.h"

NOINLINE long leak_in_library(long a, long b)
{
	long product = a * b, sum = a + b;

	LEAK();
	product += labs(sum);
	LEAK();
	return product + a * sum + b;
}
