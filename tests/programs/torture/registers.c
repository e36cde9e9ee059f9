/*
 * Hand-written frames: their CFA is in rbx, in r12, in r10 after it was saved in r13; the stack below is aligned
 * by `and`; and another frame, written by the compiler, saves those registers in between.
 */
#include "../handshake.h"
#include "../keep.h"

__attribute__((noipa, used)) static long inner(long a, long b, long c)
{
	long x = a * b, y = b * c, z = a + c;

	LEAK();
	x += labs(y);
	LEAK();
	return x + y * z;
}

/* NAME calls `target` with its CFA in `reg`, which it has saved in the slot below its return address. */
#define ALIGNED(name, reg, target)                 \
	long name(long a, long b, long c);         \
	__asm__(".text\n"                          \
		".globl " #name "\n"               \
		".type " #name ", @function\n"     \
		#name ": .cfi_startproc\n"         \
		"	push %" #reg "\n"          \
		"	.cfi_adjust_cfa_offset 8\n" \
		"	.cfi_rel_offset " #reg ", 0\n" \
		"	mov %rsp, %" #reg "\n"     \
		"	.cfi_def_cfa_register " #reg "\n" \
		"	and $-256, %rsp\n"         \
		"	sub $512, %rsp\n"          \
		"	call " #target "\n"        \
		"	mov %" #reg ", %rsp\n"     \
		"	.cfi_def_cfa_register rsp\n" \
		"	pop %" #reg "\n"           \
		"	.cfi_adjust_cfa_offset -8\n" \
		"	.cfi_restore " #reg "\n"   \
		"	ret\n"                     \
		".cfi_endproc\n"                   \
		".size " #name ", . - " #name "\n")

ALIGNED(by_rbx, rbx, inner);
ALIGNED(by_r12, r12, by_rbx);
ALIGNED(by_r14, r14, between);
ALIGNED(by_rbx_again, rbx, by_r14);

/* Keeps callee-saved registers in its frame. */
__attribute__((noipa, used)) static long between(long a, long b, long c)
{
	long x = by_r12(a, b, c), y = by_rbx(a + 1, b, c), z = by_r12(a, b + 1, c);

	LEAK();
	return by_rbx(x, y, z) + x * y + z * a + b * c;
}

int main(int argc, char **argv)
{
	volatile long sum = 0;

	(void)argv;
	rendezvous("ready");
	sum += by_rbx(argc, 2, 3);
	sum += by_r12(argc, 2, 3);
	sum += by_rbx_again(argc, 2, 3);
	rendezvous("done");
	return 0;
}
