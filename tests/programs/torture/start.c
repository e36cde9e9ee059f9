/*
 * A coroutine as libraries make them by hand: its stack begins with the address of the function that follows when
 * it returns. That function was not called, so the byte before it is padding; words above look like return
 * addresses.
 */
#include "../handshake.h"
#include "../keep.h"

static void *stack[512] __attribute__((aligned(16)));
static void *back;

void decoy(void);
void finished(void);
void start_on(void *top, void **back);
__asm__(".text\n"
	".p2align 4\n"
	".globl before\n"
	".type before, @function\n"
	"before: .cfi_startproc\n"
	"	nop\n"
	"	ret\n"
	".cfi_endproc\n"
	".size before, . - before\n"
	".p2align 4\n"
	".globl finished\n"
	".type finished, @function\n"
	"finished: .cfi_startproc\n"
	"	mov back(%rip), %rsp\n"
	"	pop %rbx\n"
	"	ret\n"
	".cfi_endproc\n"
	".size finished, . - finished\n"
	".p2align 4\n"
	".globl decoy\n"
	".type decoy, @function\n"
	"decoy: .cfi_startproc\n"
	"	call *%rax\n"
	"	ret\n"
	".cfi_endproc\n"
	".size decoy, . - decoy\n"
	".globl start_on\n"
	".type start_on, @function\n"
	"start_on: .cfi_startproc\n"
	"	push %rbx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	mov %rsp, (%rsi)\n"
	"	mov %rdi, %rsp\n"
	"	jmp coroutine\n"
	".cfi_endproc\n"
	".size start_on, . - start_on\n");

__attribute__((noipa, used)) static void coroutine(void)
{
	LEAK();
}

int main(void)
{
	void **top = &stack[500];

	/* At a function's entry, the stack is aligned except for the return address. */
	top -= (unsigned long)top / 8 % 2 == 0;
	top[0] = (void *)finished;
	for (int above = 1; above < 8; above++)
		top[above] = (char *)decoy + 2;
	rendezvous("ready");
	start_on(top, &back);
	rendezvous("done");
	return 0;
}
