/*
 * A library for lazy.c, late.c and late_thread.c. `leak_in_library` leaks; `chosen` is an indirect function whose
 * resolver leaks, which with lazy binding runs below the loader's _dl_runtime_resolve when `chosen` is first called.
 */
#include "../keep.h"

int leak_in_library(void)
{
	LEAK();
	return 1;
}

/* Without lazy binding a resolver runs before the C library can allocate: glibc 2.43 does not support that. */
#ifdef WITHOUT_RESOLVER
int chosen(void)
{
	return 2;
}
#else
static int chosen_one(void)
{
	return 2;
}

NOINLINE static void leak_in_resolver(void)
{
	LEAK();
}

static int (*choose(void))(void)
{
	leak_in_resolver();
	return chosen_one;
}

int chosen(void) __attribute__((ifunc("choose")));
#endif
