/*
 * Two processes with one memory, by clone(CLONE_VM) without CLONE_THREAD: the second frees blocks of the first, leaks,
 * and allocates blocks that the first frees.
 *
 * usage: shared_memory early|late
 *
 * The second is started before `ready`, or after.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../handshake.h"
#include "../keep.h"

enum { HANDED = 30, LEAKED = 12, RETURNED = 7 };

static void *volatile handed_over[HANDED], *volatile returned_to[RETURNED];
static char stack[1 << 16];
static volatile int turn;

NOINLINE static void *handed(void)
{
	return malloc(100);
}

NOINLINE static void *helper_leak(void)
{
	return malloc(200);
}

NOINLINE static void *returned(void)
{
	return malloc(300);
}

static void await_turn(int wanted)
{
	while (turn != wanted)
		usleep(1000);
}

static int help(void *unused)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	await_turn(1);
	for (int at = 0; at < HANDED; at++)
		free(handed_over[at]);
	for (int at = 0; at < LEAKED; at++)
		kept = helper_leak();
	for (int at = 0; at < RETURNED; at++)
		returned_to[at] = returned();
	turn = 2;
	await_turn(3);
	/* Not exit(), which would run the exit handlers of the other process's program. */
	_exit((int)(long)unused);
}

static int start_helper(void)
{
	return clone(help, stack + sizeof(stack), CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
}

int main(int argc, char **argv)
{
	int is_early = argc > 1 && strcmp(argv[1], "early") == 0, helper = is_early ? start_helper() : 0, status;

	rendezvous("ready");
	if (!is_early)
		helper = start_helper();
	if (helper <= 0)
		return 1;
	rendezvous("shared");
	for (int at = 0; at < HANDED; at++)
		handed_over[at] = handed();
	turn = 1;
	await_turn(2);
	for (int at = 0; at < RETURNED; at++)
		free(returned_to[at]);
	say("done");
	turn = 3;
	if (waitpid(helper, &status, 0) != helper || status != 0)
		return 1;
	await_line();
	return 0;
}
