/* A library that allocates before the main function of its program (LIBRARY), and that program. */
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
