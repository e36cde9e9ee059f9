/* Allocates 100 blocks of 32 bytes, then forks: the child frees its copies of all of them and leaks others. */
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

#define BLOCKS 100

static void *blocks[BLOCKS];

NOINLINE static void allocate_all(void)
{
	for (int block = 0; block < BLOCKS; block++)
		blocks[block] = malloc(32);
}

NOINLINE static void in_child(void)
{
	for (int block = 0; block < BLOCKS; block++)
		free(blocks[block]);
	for (int block = 0; block < BLOCKS; block++)
		blocks[block] = malloc(64);
	_exit(0);
}

int main(void)
{
	pid_t child;

	rendezvous("ready");
	allocate_all();
	child = fork();
	if (child == 0)
		in_child();
	waitpid(child, NULL, 0);
	rendezvous("done");
	return 0;
}
