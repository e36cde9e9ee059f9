/*
 * Calls a library through a hand-written frame whose CFA is in rbx, once per line of input. The frame that saved rbx is
 * the library's, and the library has no such hand-written frame. For a line that is not empty, it allocates in a frame
 * whose CFI leads to an address in no mapping.
 */
#include <stdio.h>
#include "../handshake.h"

long leak_in_library(long a, long b);
long by_rbx(long a, long b);
void astray(void);

__asm__(".text\n"
	".globl by_rbx\n"
	".type by_rbx, @function\n"
	"by_rbx: .cfi_startproc\n"
	"	push %rbx\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_rel_offset rbx, 0\n"
	"	mov %rsp, %rbx\n"
	"	.cfi_def_cfa_register rbx\n"
	"	and $-256, %rsp\n"
	"	call leak_in_library\n"
	"	mov %rbx, %rsp\n"
	"	.cfi_def_cfa_register rsp\n"
	"	pop %rbx\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	.cfi_restore rbx\n"
	"	ret\n"
	".cfi_endproc\n"
	".size by_rbx, . - by_rbx\n"
	".globl astray\n"
	".type astray, @function\n"
	"astray: .cfi_startproc\n"
	"	push $0x1234\n"
	"	mov $555, %edi\n"
	"	call malloc@PLT\n"
	"	pop %rdi\n"
	"	ret\n"
	".cfi_endproc\n"
	".size astray, . - astray\n");

static int next_is_empty(void)
{
	char byte;

	if (read(STDIN_FILENO, &byte, 1) != 1)
		_exit(0);
	if (byte != '\n')
		await_line();
	return byte == '\n';
}

int main(void)
{
	volatile long sum = 0;

	for (;;) {
		say("ready");
		if (next_is_empty())
			sum += by_rbx(sum, 7);
		else
			astray();
	}
}
