/* A library that leaks while it is loaded. */
#include "../keep.h"

__attribute__((constructor)) NOINLINE static void leak_when_loaded(void)
{
	LEAK();
}
