/*
 * Keeps each 32nd of blocks in a row: each pins the memory of those that were freed around it.
 *
 * usage: row        allocates 3200 blocks (keep_old), prints `ready`, allocates 16,000 (keep_new) after a line of
 *                   input, frees all but each 32nd of all of them, and prints `done`
 *        row alone  the same without a word and without a wait
 */
#include "../handshake.h"
#include "../keep.h"

#define OLD 3200
#define NEW 16000
#define SIZE 1000

static void *old[OLD], *new[NEW];

NOINLINE static void keep_old(void)
{
	for (int i = 0; i < OLD; i++)
		old[i] = memset(malloc(SIZE), 1, SIZE);
}

NOINLINE static void keep_new(void)
{
	for (int i = 0; i < NEW; i++)
		new[i] = memset(malloc(SIZE), 1, SIZE);
}

static void free_most(void **blocks, int count)
{
	for (int i = 0; i < count; i++)
		if (i % 32)
			free(blocks[i]);
}

int main(int count, char **words)
{
	(void)words;
	keep_old();
	if (count == 1)
		rendezvous("ready");
	keep_new();
	free_most(old, OLD);
	free_most(new, NEW);
	if (count == 1)
		rendezvous("done");
	return 0;
}
