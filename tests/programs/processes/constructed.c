/* A library that allocates before its program's main function (LIBRARY), and a program. */
#include "../keep.h"

#ifdef LIBRARY
NOINLINE static void allocate_in_library(void)
{
	LEAK();
}

__attribute__((constructor)) static void constructor(void)
{
	allocate_in_library();
	LEAK();
}
#else
int main(void)
{
	return 0;
}
#endif
