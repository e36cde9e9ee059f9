/*
 * Calls a library through a hand-written frame whose CFA is in rbx, once per line of input. What saved rbx is the
 * library's frame, and the library has no such frame itself.
 */
#include <stdio.h>
#include "../handshake.h"

long leak_in_library(long a, long b);
long by_rbx(long a, long b);

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
	".size by_rbx, . - by_rbx\n");

int main(void)
{
	volatile long sum = 0;

	for (;;) {
		rendezvous("ready");
		sum += by_rbx(sum, 7);
	}
}
