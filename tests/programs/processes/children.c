/*
 * At each line makes CHILDREN children; each leaks BLOCKS blocks of 48 bytes. All of them wait until all are there
 * (argument 3 is "together") or end at once ("alone"). Says "done" when all have ended.
 */
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

NOINLINE static void in_child(long blocks)
{
	for (long block = 0; block < blocks; block++)
		kept = malloc(48);
}

static void child(long blocks, const int *gate)
{
	char byte;

	in_child(blocks);
	if (gate) {
		close(gate[1]);
		if (read(gate[0], &byte, 1) < 0)
			_exit(1);
	}
	_exit(0);
}

static void make_children(long children, long blocks, int together)
{
	int gate[2];

	if (pipe(gate))
		_exit(1);
	for (long number = 0; number < children; number++) {
		pid_t pid = fork();

		if (pid == 0)
			child(blocks, together ? gate : NULL);
		if (!together)
			waitpid(pid, NULL, 0);
	}
	/* The gate opens when no process has its other end open. */
	close(gate[1]);
	while (wait(NULL) > 0) {
	}
	close(gate[0]);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 1;
	rendezvous("ready");
	for (;;) {
		make_children(atol(argv[1]), atol(argv[2]), argv[3][0] == 't');
		rendezvous("done");
	}
}
