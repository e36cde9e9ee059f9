/*
 * Blocks whose pointers are for a time where no reader of memory can find them, and then come back: verdicts on them
 * are false. Each is freed in the end.
 *
 * usage: hideaways BLOCKS          (in each way, at most 1000)
 *
 * Says `started`, and after a line hides the blocks and says `ready`; after another it takes them back, frees them,
 * says `freed`, and waits for a line.
 */
#include <stdint.h>
#include <stdio.h>
#include "../handshake.h"
#include "../keep.h"

#define MOST 1000
#define SIZE 48

static unsigned long wanted;
static int file;
static volatile uintptr_t masked[MOST];
/* Pointers at unaligned addresses only. */
static struct {
	char before;
	volatile uintptr_t pointer;
	char after[7];
} __attribute__((packed)) odd[MOST];

static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

NOINLINE static uintptr_t in_file(unsigned long at)
{
	uintptr_t block = (uintptr_t)malloc(SIZE);

	return pwrite(file, &block, sizeof(block), at * sizeof(block)) == sizeof(block) ? 0 : block;
}

NOINLINE static uintptr_t masked_by_key(unsigned long at)
{
	masked[at] = (uintptr_t)malloc(SIZE) ^ 0x5a5a5a5a5a5a5a5a;
	return 0;
}

NOINLINE static uintptr_t at_odd_address(unsigned long at)
{
	odd[at].pointer = (uintptr_t)malloc(SIZE);
	return 0;
}

NOINLINE static void hide(uintptr_t (*way)(unsigned long))
{
	for (unsigned long at = 0; at < wanted; at++)
		if (way(at) != 0)
			fail("write");
}

/* Overwrites the stack and the registers that had pointers. */
NOINLINE static void forget(void)
{
	volatile char over[8192];

	for (unsigned at = 0; at < sizeof(over); at++)
		over[at] = 1;
}

static void take_back(int from)
{
	uintptr_t block;

	for (unsigned long at = 0; at < wanted; at++) {
		if (read(from, &block, sizeof(block)) != sizeof(block))
			fail("read");
		free((void *)block);
	}
}

int main(int argc, char **argv)
{
	FILE *stream = tmpfile();

	wanted = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
	if (!wanted || wanted > MOST)
		return 2;
	if (!stream)
		fail("setup");
	file = fileno(stream);
	rendezvous("started");
	hide(in_file);
	hide(masked_by_key);
	hide(at_odd_address);
	forget();
	rendezvous("ready");
	take_back(file);
	for (unsigned long at = 0; at < wanted; at++) {
		free((void *)(masked[at] ^ 0x5a5a5a5a5a5a5a5a));
		free((void *)odd[at].pointer);
	}
	rendezvous("freed");
}
