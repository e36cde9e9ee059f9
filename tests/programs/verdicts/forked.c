/* Holds and loses blocks, forks, and does so again in the child. */
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

#define HELD 100
#define LOST 7

static void *before[HELD], *after[HELD];

NOINLINE static void *before_fork(void)
{
	return malloc(48);
}

NOINLINE static void *after_fork(void)
{
	return malloc(48);
}

NOINLINE static void fill(void *(*allocate)(void), void **held)
{
	for (int block = 0; block < HELD + LOST; block++) {
		void *volatile allocated = allocate();

		if (block >= LOST)
			held[block - LOST] = allocated;
	}
}

int main(void)
{
	pid_t child;

	rendezvous("ready");
	fill(before_fork, before);
	child = fork();
	if (child == 0) {
		fill(after_fork, after);
		rendezvous("done");
		_exit(0);
	}
	waitpid(child, NULL, 0);
	return 0;
}
