/*
 * Threads that hold known values in registers and nowhere else: one that waits in a system call, one that never enters
 * the kernel, and one that waits and has an alternate signal stack. Prints for each its kind and its id, and for the
 * last the address of its stack.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "../handshake.h"

static char alternate[1 << 16];

static void introduce(const char *name, const void *place)
{
	char line[100];

	snprintf(line, sizeof(line), "%s %ld %lx", name, (long)syscall(SYS_gettid), (unsigned long)place);
	say(line);
}

/* Instructions compute the values: no memory holds them as a word. */
static void *waits(void *argument)
{
	introduce("waits", NULL);
#ifdef __x86_64__
	__asm__ volatile("movabs $0x5a5a0001deadbee1, %%rbx\n"
			 "movabs $0x5a5a0001deadbee2, %%r12\n"
			 "movabs $0x5a5a0001deadbee3, %%r13\n"
			 "movabs $0x5a5a0001deadbee4, %%r14\n"
			 "movabs $0x5a5a0001deadbee5, %%r15\n"
			 "1: mov %0, %%eax\n"
			 "syscall\n"
			 "jmp 1b\n"
			 :
			 : "i"(SYS_pause)
			 : "rax", "rbx", "rcx", "r11", "r12", "r13", "r14", "r15", "memory");
#else
	__asm__ volatile("ldr x19, =0x5a5a0001deadbee1\n"
			 "add x20, x19, #1\n"
			 "add x21, x19, #2\n"
			 "add x22, x19, #3\n"
			 "add x23, x19, #4\n"
			 "1: mov x0, #0\n"
			 "mov x1, #0\n"
			 "mov x2, #0\n"
			 "mov x3, #0\n"
			 "mov x8, %0\n"
			 "svc #0\n"
			 "b 1b\n"
			 :
			 : "i"(SYS_ppoll)
			 : "x0", "x1", "x2", "x3", "x8", "x19", "x20", "x21", "x22", "x23", "memory");
#endif
	return argument;
}

static void *spins(void *argument)
{
	introduce("spins", NULL);
#ifdef __x86_64__
	__asm__ volatile("movabs $0x5a5a0002deadbee1, %%rbx\n"
			 "1: pause\n"
			 "jmp 1b\n"
			 :
			 :
			 : "rbx");
#else
	__asm__ volatile("ldr x19, =0x5a5a0002deadbee1\n"
			 "1: yield\n"
			 "b 1b\n"
			 :
			 :
			 : "x19");
#endif
	return argument;
}

static void *has_alternate_stack(void *argument)
{
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };

	if (sigaltstack(&stack, NULL))
		_exit(1);
	introduce("alternate", alternate);
	for (;;)
		pause();
	return argument;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, waits, NULL);
	pthread_create(&thread, NULL, spins, NULL);
	pthread_create(&thread, NULL, has_alternate_stack, NULL);
	await_line();
	return 0;
}
