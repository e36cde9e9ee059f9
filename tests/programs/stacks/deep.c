/*
 * Recursion: main -> alone, DEPTH times; or main -> first -> second -> third -> first and so on, DEPTH functions. Leaks
 * at the bottom or, with "each", in each function before it calls the next; with a library, loads it there instead.
 *
 *   deep alone|three bottom|each DEPTH [LIBRARY]
 */
#include <dlfcn.h>

#include "../handshake.h"
#include "../keep.h"

static int in_each;
static const char *library;

static void load(void)
{
	if (!dlopen(library, RTLD_NOW))
		exit(1);
}

static int first(int depth);

#define RECURSIVE(name, next)                \
	NOINLINE static int name(int depth)  \
	{                                    \
		if (library && depth <= 1) \
			load();           \
		else if (in_each || depth <= 1) \
			LEAK();              \
		if (depth > 1)               \
			return next(depth - 1) + 1; \
		return 1;                    \
	}

RECURSIVE(alone, alone)
RECURSIVE(third, first)
RECURSIVE(second, third)
RECURSIVE(first, second)

int main(int argc, char **argv)
{
	volatile int depth;

	if (argc < 4)
		return 1;
	library = argv[4];
	in_each = !strcmp(argv[2], "each");
	depth = atoi(argv[3]);
	rendezvous("ready");
	depth = strcmp(argv[1], "alone") ? first(depth) : alone(depth);
	rendezvous("done");
	return 0;
}
