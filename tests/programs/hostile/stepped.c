/*
 * Leaks 10 blocks of 24 bytes while a process debugs it, as argument 1 says: that `steps` through each instruction,
 * `watches` the variable with the block's address, `breaks` at the beginning of malloc by a debug register, or only
 * attaches (`held`). Or the program `traps` by its own trap flag. An unexpected stop is its exit status.
 */
#define _GNU_SOURCE
#include "../handshake.h"
#include "../keep.h"
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { ROUNDS = 10 };

enum outcome { FINE, FAILED = 10, STRAY_SIGNAL, STRAY_TRAP, TOO_FEW };

/* Shared by the two processes. */
static struct shared {
	volatile int attached, done;
} *shared;

/* For --alloc. */
NOINLINE void *own_allocation(size_t size)
{
	void *block = malloc(size);

	*(volatile char *)block = 1;
	return block;
}

NOINLINE static void leak(void)
{
	kept = own_allocation(24);
	*(volatile char *)kept = 2;
}

static void leak_all(void)
{
	for (int round = 0; round < ROUNDS; round++)
		leak();
}

/* Makes a debug register stop the target at `address`: when it is executed, or at a write to 8 bytes. */
static int arm(pid_t target, void *address, int writes)
{
	unsigned long control = 1 | (writes ? 0x9UL << 16 : 0);

	return ptrace(PTRACE_POKEUSER, target, offsetof(struct user, u_debugreg[0]), address) ||
	       ptrace(PTRACE_POKEUSER, target, offsetof(struct user, u_debugreg[7]), control);
}

static int disarm(pid_t target)
{
	return ptrace(PTRACE_POKEUSER, target, offsetof(struct user, u_debugreg[7]), 0L) != 0;
}

static void set_trap_flag(void)
{
	__asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
}

static void clear_trap_flag(void)
{
	__asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}

/* Runs the target from stop to stop until it is done. Returns the first error. */
static enum outcome debug(pid_t target, const char *how)
{
	int steps = !strcmp(how, "steps"), watches = !strcmp(how, "watches"), status;
	long stops = 0;

	if (ptrace(PTRACE_SEIZE, target, 0L, 0L) || ptrace(PTRACE_INTERRUPT, target, 0L, 0L) ||
	    waitpid(target, &status, 0) != target)
		return FAILED;
	if (!steps && arm(target, watches ? (void *)&kept : (void *)malloc, watches))
		return FAILED;
	shared->attached = 1;
	/* Without single steps, the last stop is in the last round. */
	while (steps ? !shared->done : stops < ROUNDS) {
		siginfo_t why;

		if (ptrace(steps ? PTRACE_SINGLESTEP : PTRACE_CONT, target, 0L, 0L) ||
		    waitpid(target, &status, 0) != target || !WIFSTOPPED(status))
			return FAILED;
		if (WSTOPSIG(status) != SIGTRAP)
			return STRAY_SIGNAL;
		if (ptrace(PTRACE_GETSIGINFO, target, 0L, &why))
			return FAILED;
		/*
		 * The kernel reports the end of a step in several ways: over a probe like a signal of a process, over a
		 * system call (also a return probe's) by TRAP_BRKPT. A breakpoint that nothing owns has SI_KERNEL.
		 */
		if (steps ? why.si_code == SI_KERNEL : why.si_code != TRAP_HWBKPT)
			return STRAY_TRAP;
		stops++;
	}
	if ((!steps && disarm(target)) || ptrace(PTRACE_DETACH, target, 0L, 0L))
		return FAILED;
	return stops < ROUNDS ? TOO_FEW : FINE;
}

/* Attaches to the target, and lets it run until it is done. */
static enum outcome hold(pid_t target)
{
	if (ptrace(PTRACE_SEIZE, target, 0L, 0L))
		return FAILED;
	shared->attached = 1;
	while (!shared->done)
		usleep(1000);
	return FINE;
}

/* Leaks while it is debugged. */
static int leak_debugged(const char *how)
{
	int status, is_held = !strcmp(how, "held");
	pid_t debugger = fork();

	if (!debugger)
		_exit(is_held ? hold(getppid()) : debug(getppid(), how));
	while (!shared->attached)
		if (waitpid(debugger, &status, WNOHANG) == debugger)
			return WEXITSTATUS(status);
	leak_all();
	if (is_held)
		rendezvous("held");
	shared->done = 1;
	if (waitpid(debugger, &status, 0) != debugger || !WIFEXITED(status))
		return FAILED;
	return WEXITSTATUS(status);
}

static volatile long traps;

static void on_trap(int signal)
{
	(void)signal;
	traps++;
}

static int leak_trapping(void)
{
	if (signal(SIGTRAP, on_trap) == SIG_ERR)
		return FAILED;
	set_trap_flag();
	leak_all();
	clear_trap_flag();
	/* A block takes more than 10 instructions. */
	return signal(SIGTRAP, SIG_DFL) == on_trap && traps > 10 * ROUNDS ? FINE : TOO_FEW;
}

int main(int argc, char **argv)
{
	int status;

	if (argc < 2)
		return FAILED;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	rendezvous("ready");
	status = strcmp(argv[1], "traps") ? leak_debugged(argv[1]) : leak_trapping();
	rendezvous("done");
	/* memleak has left. */
	leak_all();
	return status;
}
