/*
 * One source, two programs of the same layout: leaks argument 1 blocks of 24 bytes through functions whose names
 * and frames depend on FIRST, then executes the program in the remaining arguments, in the thread that WHO names.
 */
#include <pthread.h>
#include "../handshake.h"
#include "../keep.h"

#ifdef FIRST
#define INNER first_inner
#define OUTER first_outer
#define FRAME_WORDS 5
#else
#define INNER second_inner
#define OUTER second_outer
#define FRAME_WORDS 37
#endif

static char **next;

NOINLINE static void INNER(long blocks)
{
	volatile long frame[FRAME_WORDS];

	frame[0] = blocks;
	while (frame[0]-- > 0)
		kept = malloc(24);
}

NOINLINE static void OUTER(long blocks)
{
	volatile long frame[2 * FRAME_WORDS];

	frame[0] = blocks;
	INNER(frame[0]);
	*(volatile char *)kept = 1;
}

static void *execute(void *unused)
{
	execv(next[0], next);
	_exit(1);
	return unused;
}

/* PROGRAM BLOCKS (now|asked) (leader|thread) [PROGRAM ...] */
int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 4)
		return 1;
	if (argv[2][0] == 'a')
		rendezvous("ready");
	OUTER(atol(argv[1]));
	rendezvous("done");
	next = argv + 4;
	if (argc == 4)
		return 0;
	if (argv[3][0] == 'l')
		execute(NULL);
	pthread_create(&thread, NULL, execute, NULL);
	pthread_join(thread, NULL);
	return 1;
}
