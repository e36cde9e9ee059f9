/*
 * Keeps 20,000 blocks of 60 KiB, from the heap, and without being allowed to map more memory.
 */
#include "../handshake.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define BLOCKS 20000
#define BYTES (60 << 10)

static void *kept[BLOCKS];

static void keep(void)
{
	for (int number = 0; number < BLOCKS; number++)
		kept[number] = malloc(BYTES);
}

int main(void)
{
	struct rlimit none = { .rlim_cur = 0, .rlim_max = 0 };

	/* From the heap, which does not shrink. */
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mallopt(M_TRIM_THRESHOLD, -1);
	keep();
	for (int number = 0; number < BLOCKS; number++)
		free(kept[number]);
	say("ready");
	await_line();
	setrlimit(RLIMIT_AS, &none);
	keep();
	say("done");
	await_line();
	return 0;
}
