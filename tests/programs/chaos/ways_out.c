/*
 * Leaves functions in every way except by returning: jumps out of comparators and out of signal handlers on an
 * alternate stack, switches contexts between allocations, threads that exit and that are cancelled, children by fork,
 * vfork and posix_spawn that exec or end. A timer interrupts all the time.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include "rounds.h"

#define NOINLINE __attribute__((noipa))
#define STACK_BYTES 65536

extern char **environ;

static sigjmp_buf back;
static char *volatile forbidden;
static volatile sig_atomic_t interruptions;

static void count(int signal)
{
	(void)signal;
	interruptions++;
}

static void jump_back(int signal)
{
	siglongjmp(back, signal);
}

static void handle_signals(void)
{
	static char stack[STACK_BYTES];
	stack_t own = { .ss_sp = stack, .ss_size = sizeof(stack) };
	struct sigaction fault = { .sa_handler = jump_back, .sa_flags = SA_ONSTACK | SA_NODEFER };
	struct sigaction timer = { .sa_handler = count, .sa_flags = SA_ONSTACK | SA_RESTART };
	struct itimerval often = { { 0, 3000 }, { 0, 3000 } };

	sigaltstack(&own, NULL);
	sigaction(SIGSEGV, &fault, NULL);
	sigaction(SIGALRM, &timer, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

NOINLINE static unsigned out_of_a_handler(void)
{
	void *volatile block = malloc(300);
	int signal = sigsetjmp(back, 1);

	if (!signal) {
		block = realloc(block, 3000);
		*forbidden = 1;
	}
	free(block);
	return signal;
}

static int compare_and_jump(const void *left, const void *right)
{
	int a = *(const int *)left, b = *(const int *)right;
	void *volatile block = malloc(64 + a);

	free(block);
	if (a + b == 77)
		siglongjmp(back, a * b);
	return a - b;
}

NOINLINE static unsigned out_of_a_comparator(void)
{
	int numbers[60];

	for (int at = 0; at < 60; at++)
		numbers[at] = at * 23 % 60;
	int jumped = sigsetjmp(back, 0);
	if (!jumped)
		qsort(numbers, 60, sizeof(int), compare_and_jump);
	return jumped;
}

static ucontext_t here, there;
static unsigned switches;

static void coroutine(void)
{
	for (;;) {
		void *volatile block = malloc(100 + switches % 100);

		switches++;
		swapcontext(&there, &here);
		free(block);
	}
}

NOINLINE static unsigned between_contexts(void)
{
	char *stack = malloc(STACK_BYTES);

	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = STACK_BYTES;
	makecontext(&there, coroutine, 0);
	switches = 0;
	for (int time = 0; time < 20; time++) {
		void *volatile block = malloc(200);

		swapcontext(&here, &there);
		free(block);
	}
	free(stack);
	return switches;
}

static void free_it(void *block)
{
	free(block);
}

static void *exits(void *argument)
{
	pthread_cleanup_push(free_it, malloc(500));
	pthread_exit((void *)((uintptr_t)argument + 1));
	pthread_cleanup_pop(0);
	return NULL;
}

static void *is_cancelled(void *argument)
{
	pthread_cleanup_push(free_it, malloc(600));
	for (;;)
		pause();
	pthread_cleanup_pop(0);
	return argument;
}

NOINLINE static unsigned by_threads(void)
{
	pthread_t exiting, cancelled;
	void *first, *second;

	pthread_create(&exiting, NULL, exits, (void *)7);
	pthread_create(&cancelled, NULL, is_cancelled, NULL);
	pthread_cancel(cancelled);
	pthread_join(exiting, &first);
	pthread_join(cancelled, &second);
	return (uintptr_t)first + (second == PTHREAD_CANCELED);
}

static unsigned status_of(pid_t child)
{
	int status = 0;

	while (waitpid(child, &status, 0) != child) {
	}
	return status;
}

NOINLINE static unsigned by_children(unsigned round)
{
	char *const arguments[] = { "sh", "-c", "exit 5", NULL };
	char *volatile block = malloc(700);
	unsigned statuses;
	pid_t child = fork();

	if (child == 0) {
		free(block);
		block = malloc(800);
		free(block);
		if (round % 2)
			abort();
		_exit(3);
	}
	statuses = status_of(child);
	free(block);
	child = vfork();
	if (child == 0) {
		execve("/bin/sh", arguments, environ);
		_exit(9);
	}
	statuses = 31 * statuses + status_of(child);
	if (round % 4 == 0 && !posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ))
		statuses = 31 * statuses + status_of(child);
	return statuses;
}

int main(int argc, char **argv)
{
	struct rounds rounds = rounds_of(argv);

	(void)argc;
	handle_signals();
	while (goes_on(&rounds)) {
		add(&rounds, out_of_a_handler());
		add(&rounds, out_of_a_comparator());
		add(&rounds, between_contexts());
		add(&rounds, by_threads());
		add(&rounds, by_children(rounds.done));
		end_round(&rounds);
	}
	return interruptions ? DONE : 1;
}
