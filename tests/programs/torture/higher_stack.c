/*
 * Functions called on another stack, by code whose CFI finds the caller by the frame pointer, as in runtimes: from the
 * main thread, whose stack lies higher, and from a thread whose stack lies lower, from there once more, and back.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include "../handshake.h"
#include "../keep.h"

#define PART (1 << 19)

void call_on_stack(void (*call)(void), void *top);
__asm__(".text\n"
	".globl call_on_stack\n"
	".type call_on_stack, @function\n"
	"call_on_stack: .cfi_startproc\n"
	"	push %rbp\n"
	"	.cfi_def_cfa_offset 16\n"
	"	.cfi_offset %rbp, -16\n"
	"	mov %rsp, %rbp\n"
	"	.cfi_def_cfa_register %rbp\n"
	"	mov %rsi, %rsp\n"
	"	call *%rdi\n"
	"	leave\n"
	"	.cfi_def_cfa %rsp, 8\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size call_on_stack, . - call_on_stack\n");

/* Parts of one mapping, the lowest first. */
static char *stacks;

NOINLINE static void on_other_stack(void)
{
	LEAK();
}

NOINLINE static void on_the_highest(void)
{
	call_on_stack(on_other_stack, stacks + 2 * PART);
	LEAK();
}

NOINLINE static void on_a_higher(void)
{
	call_on_stack(on_the_highest, stacks + 4 * PART);
	LEAK();
}

NOINLINE static void *thread(void *unused)
{
	call_on_stack(on_other_stack, stacks + 3 * PART);
	call_on_stack(on_a_higher, stacks + 3 * PART);
	LEAK();
	return unused;
}

int main(void)
{
	pthread_attr_t attributes;
	pthread_t lower;

	stacks = mmap(NULL, 4 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stacks == MAP_FAILED)
		return 1;
	rendezvous("ready");
	call_on_stack(on_other_stack, stacks + PART);
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stacks, PART);
	if (pthread_create(&lower, &attributes, thread, NULL))
		return 1;
	pthread_join(lower, NULL);
	rendezvous("done");
	return 0;
}
