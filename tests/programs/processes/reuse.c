/*
 * One process after another with one pid, indistinguishable from outside: same file, same addresses, same parent.
 *
 * The parent prints the child's pid. At the next line, the child allocates 10 blocks in `first_life`; at the one after
 * that it is killed, and a process with its pid allocates 1000 in `second_life`.
 */
#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

static int wake[2], done[2];

NOINLINE static void first_life(void)
{
	for (int block = 0; block < 10; block++)
		LEAK();
}

NOINLINE static void second_life(void)
{
	for (int block = 0; block < 1000; block++)
		LEAK();
}

static void live(void (*life)(void))
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(wake[0], &byte, 1) == 1) {
		life();
		if (write(done[1], &byte, 1) != 1)
			break;
	}
	_exit(0);
}

static void let_live(void)
{
	char byte = 0;

	if (write(wake[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1)
		_exit(2);
}

/* Forks a process with exactly this pid. */
static pid_t fork_as(pid_t pid)
{
	struct clone_args arguments = {
		.exit_signal = SIGCHLD,
		.set_tid = (uintptr_t)&pid,
		.set_tid_size = 1,
	};

	return syscall(SYS_clone3, &arguments, sizeof(arguments));
}

int main(void)
{
	char text[16];
	pid_t child, next;

	if (pipe(wake) || pipe(done))
		return 1;
	child = fork();
	if (!child)
		live(first_life);
	snprintf(text, sizeof(text), "%d", child);
	rendezvous(text);
	let_live();
	rendezvous("first");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	next = fork_as(child);
	if (!next)
		live(second_life);
	if (next != child) {
		rendezvous("another pid");
		return 3;
	}
	let_live();
	rendezvous("second");
	kill(next, SIGKILL);
	waitpid(next, NULL, 0);
	return 0;
}
