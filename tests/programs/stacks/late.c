/*
 * Loads the library that its argument names once it is told to, and leaks in it: main -> load,
 * then for each line main -> call_late -> leak_in_library -> malloc.
 */
#include <dlfcn.h>
#include "../handshake.h"
#include "../keep.h"

static int (*leak_in_library)(void);

NOINLINE static int call_late(void)
{
	return leak_in_library() + 1;
}

int main(int argc, char **argv)
{
	volatile int sum = 0;
	void *library;

	rendezvous("ready");
	library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library)
		return 1;
	leak_in_library = (int (*)(void))dlsym(library, "leak_in_library");
	for (;;) {
		sum += call_late();
		rendezvous("done");
	}
}
