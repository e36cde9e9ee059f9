/*
 * Leaks in signal handlers, on the thread's stack or, with an argument, on another one.
 *
 * main -> raising -> raise -> <signal> -> on_raise -> malloc: the interrupted frame is in a system call.
 * main -> trapping <signal> -> on_trap -> malloc: the interrupted frame is at the first instruction of its
 * function, whose caller's frame is still at the stack pointer.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>
#include "../handshake.h"
#include "../keep.h"

static char other_stack[1 << 16];

NOINLINE static void on_raise(int number)
{
	(void)number;
	LEAK();
}

NOINLINE static void on_trap(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)info;
	LEAK();
	/* Skips the two bytes of ud2. */
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

NOINLINE static int raising(void)
{
	return raise(SIGHUP) + 1;
}

int trapping(void);
__asm__(".text\n"
	".type before, @function\n"
	"before: .cfi_startproc\n"
	"	sub $0x1008, %rsp\n"
	"	.cfi_adjust_cfa_offset 0x1008\n"
	"	ud2\n"
	".cfi_endproc\n"
	".size before, . - before\n"
	".globl trapping\n"
	".type trapping, @function\n"
	"trapping: .cfi_startproc\n"
	"	ud2\n"
	"	mov $1, %eax\n"
	"	ret\n"
	".cfi_endproc\n"
	".size trapping, . - trapping\n");

static void handle(int number, void (*action)(int), int flags)
{
	struct sigaction handler = {.sa_handler = action, .sa_flags = flags | SA_ONSTACK};

	sigaction(number, &handler, NULL);
}

int main(int argc, char **argv)
{
	stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof(other_stack)};
	volatile int sum = 0;

	(void)argv;
	if (argc > 1)
		sigaltstack(&stack, NULL);
	handle(SIGHUP, on_raise, 0);
	handle(SIGILL, (void (*)(int))on_trap, SA_SIGINFO);
	rendezvous("ready");
	sum += raising();
	sum += trapping();
	rendezvous("done");
	return 0;
}
