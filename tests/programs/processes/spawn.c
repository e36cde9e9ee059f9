/*
 * ROUNDS times each: vfork whose child allocates two blocks, frees one of them and one of its parent's, and
 * executes; posix_spawn of the same program. Another thread allocates ROUNDS_OF_THREAD blocks and frees them
 * meanwhile. The parent frees the blocks that its children left.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

#define ROUNDS_OF_THREAD 20000

extern char **environ;
static void *volatile of_parent, *volatile of_child;
static char *arguments[] = { "/bin/true", NULL };

NOINLINE static void in_vfork_child(void)
{
	void *volatile own = malloc(40);

	of_child = malloc(56);
	free(own);
	free(of_parent);
}

NOINLINE static void in_parent(void)
{
	of_parent = malloc(72);
	*(volatile char *)of_parent = 1;
}

NOINLINE static void vfork_and_execute(void)
{
	pid_t pid;

	in_parent();
	pid = vfork();
	if (pid == 0) {
		in_vfork_child();
		execve(arguments[0], arguments, environ);
		_exit(1);
	}
	waitpid(pid, NULL, 0);
	free(of_child);
}

NOINLINE static void spawn(void)
{
	pid_t pid;

	if (posix_spawn(&pid, arguments[0], NULL, NULL, arguments, environ))
		_exit(1);
	waitpid(pid, NULL, 0);
}

NOINLINE static void *thread_main(void *unused)
{
	for (long round = 0; round < ROUNDS_OF_THREAD; round++) {
		void *volatile block = malloc(round % 100);

		free(block);
	}
	return unused;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1;
	pthread_t thread;

	rendezvous("ready");
	pthread_create(&thread, NULL, thread_main, NULL);
	for (long round = 0; round < rounds; round++) {
		vfork_and_execute();
		spawn();
	}
	pthread_join(thread, NULL);
	rendezvous("done");
	return 0;
}
