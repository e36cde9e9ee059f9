/*
 * Libraries come and go, in two threads: each loads its own, uses it, and unloads it again.
 *
 * usage: passing ROUNDS STOP LIBRARY OTHER_LIBRARY CXX_LIBRARY
 */
#include <dlfcn.h>
#include <pthread.h>
#include "rounds.h"

/* Returns the number that the library's function returns; 1000 if anything is wrong. */
static uintptr_t use(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*function)(void) = library ? (int (*)(void))dlsym(library, "use") : NULL;
	uintptr_t said = function ? (uintptr_t)function() : 1000;

	if (!library || dlclose(library))
		return 1000;
	return said;
}

static void *use_often(void *path)
{
	uintptr_t sum = 0;

	for (int time = 0; time < 5; time++)
		sum += use(path);
	return (void *)sum;
}

int main(int argc, char **argv)
{
	struct rounds rounds = rounds_of(argv);

	if (argc != 6)
		return 1;
	while (goes_on(&rounds)) {
		pthread_t thread;
		void *said;

		if (pthread_create(&thread, NULL, use_often, argv[3]))
			return 1;
		add(&rounds, (uintptr_t)use_often(argv[4]));
		pthread_join(thread, &said);
		add(&rounds, (uintptr_t)said);
		add(&rounds, use(argv[5]));
		end_round(&rounds);
	}
	return DONE;
}
