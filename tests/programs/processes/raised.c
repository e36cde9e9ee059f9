/*
 * Starts itself, as a child, from the file that argument 1 names, whose mode may give the child other rights; with an
 * argument 2, as another user. The child prints its user ids, and leaks 20 blocks when told to.
 */
#define _GNU_SOURCE
#include "../handshake.h"
#include "../keep.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>

NOINLINE static void leak_raised(void)
{
	kept = malloc(48);
	*(volatile char *)kept = 1;
}

static int run_raised(void)
{
	char line[64];

	snprintf(line, sizeof(line), "runs by %d as %d", getuid(), geteuid());
	rendezvous(line);
	for (int block = 0; block < 20; block++)
		leak_raised();
	rendezvous("raised");
	return 7;
}

int main(int argc, char **argv)
{
	char *arguments[] = { "raised", NULL };
	int status, file;
	pid_t child;

	if (argc < 2)
		return run_raised();
	/* Opened before the change of user: the other user may not be able to reach it. */
	file = open(argv[1], O_PATH | O_CLOEXEC);
	rendezvous("ready");
	child = fork();
	if (!child) {
		if (argc > 2 && (setgid(atoi(argv[2])) || setuid(atoi(argv[2]))))
			_exit(1);
		execveat(file, "", arguments, environ, AT_EMPTY_PATH);
		_exit(1);
	}
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
		return 1;
	rendezvous("done");
	return 0;
}
