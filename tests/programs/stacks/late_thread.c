/*
 * Loads the library that its argument names, and leaks in it at once, in a thread that has used much of its stack and
 * allocates for the first time: thread_main -> use_much_stack -> leak_in_library -> malloc.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include "../keep.h"

/* More than memleak copies of a stack whose end is not known. */
#define BYTES (48 << 10)

static int (*leak_in_library)(void);

NOINLINE static int use_much_stack(void)
{
	volatile char much[BYTES];

	memset((char *)much, 1, sizeof(much));
	return leak_in_library() + much[1];
}

NOINLINE static void *thread_main(void *argument)
{
	return use_much_stack() == 2 ? argument : NULL;
}

int main(int argc, char **argv)
{
	void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	void *result = NULL;
	pthread_t thread;

	if (!library)
		return 1;
	leak_in_library = (int (*)(void))dlsym(library, "leak_in_library");
	if (!leak_in_library || pthread_create(&thread, NULL, thread_main, argv))
		return 1;
	pthread_join(thread, &result);
	return !result;
}
