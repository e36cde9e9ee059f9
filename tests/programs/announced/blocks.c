/* Announces blocks by announced/provider.c: a part of it, a library, or, with LATE, the library that argument 1 names. */
#include "provider.h"
#include "../handshake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

#ifdef LATE
static void *(*block_of)(size_t, size_t);
static void (*tell)(void *, size_t, size_t);
static void (*free_of)(void *);
static unsigned (*allocation_listeners)(void);
static unsigned (*free_listeners)(void);

static void load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);

	if (!library)
		exit(2);
	block_of = (void *(*)(size_t, size_t))dlsym(library, "announced_block");
	tell = (void (*)(void *, size_t, size_t))dlsym(library, "announce");
	free_of = (void (*)(void *))dlsym(library, "announced_free");
	allocation_listeners = (unsigned (*)(void))dlsym(library, "listeners_of_allocations");
	free_listeners = (unsigned (*)(void))dlsym(library, "listeners_of_frees");
}
#else
#define block_of announced_block
#define tell announce
#define free_of announced_free
#define allocation_listeners listeners_of_allocations
#define free_listeners listeners_of_frees
#endif

static void *volatile kept;

static void say_listeners(void)
{
	char line[64];

	snprintf(line, sizeof(line), "listeners %u %u", allocation_listeners(), free_listeners());
	say(line);
}

/* 120 blocks of 1000 bytes that stand for 5000 each; 80 are freed. */
NOINLINE static void some_freed(void)
{
	for (int number = 0; number < 120; number++) {
		void *block = block_of(1000, 5000);

		if (number % 3)
			free_of(block);
		else
			kept = block;
	}
}

/* Announces one address twice, without a free in between: the second announcement closes the first. */
NOINLINE static void allocated_again(void)
{
	kept = malloc(500);
	tell(kept, 500, 500);
	tell(kept, 300, 300);
}

/* Frees of blocks that were not announced. */
NOINLINE static void unknown_frees(void)
{
	for (int number = 0; number < 3; number++)
		free_of(malloc(64));
}

/* An amount of many digits, and a block whose weight is less than its size: it counts with its size. */
NOINLINE static void large(void)
{
	static char place[2];

	tell(&place[0], (size_t)3 << 32, (size_t)3 << 33);
	tell(&place[1], 4096, 1);
}

int main(int argc, char **argv)
{
#ifdef LATE
	rendezvous("loading");
	load(argv[1]);
	while (!allocation_listeners())
		usleep(1000);
#else
	(void)argv;
#endif
	(void)argc;
	say_listeners();
	rendezvous("ready");
	say_listeners();
	some_freed();
	allocated_again();
	unknown_frees();
	large();
	rendezvous("done");
	say_listeners();
	return 0;
}
