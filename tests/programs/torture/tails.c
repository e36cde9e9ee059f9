/*
 * Calls at the very end of a function: `abandon` never returns, so the return address of its call in `ending`
 * is the first instruction of `next`, whose frame has another size. And calls that are jumps.
 */
#include <setjmp.h>
#include "../handshake.h"
#include "../keep.h"

static jmp_buf home;

__attribute__((noipa, used)) static void abandon(int number)
{
	LEAK();
	longjmp(home, number);
}

int ending(int number);
__asm__(".text\n"
	".globl ending\n"
	".type ending, @function\n"
	"ending: .cfi_startproc\n"
	"	sub $0x108, %rsp\n"
	"	.cfi_adjust_cfa_offset 0x108\n"
	"	call abandon\n"
	".cfi_endproc\n"
	".size ending, . - ending\n"
	".globl next\n"
	".type next, @function\n"
	"next: .cfi_startproc\n"
	"	nop\n"
	"	ret\n"
	".cfi_endproc\n"
	".size next, . - next\n");

NOINLINE static int caller_of_ending(int number)
{
	return ending(number) + 1;
}

NOINLINE static int last(int number)
{
	LEAK();
	return number;
}

NOINLINE static int jumps(int number)
{
	return last(number + 1);
}

NOINLINE static int jumps_too(int number)
{
	return jumps(number + 1);
}

NOINLINE static void *jumps_to_malloc(size_t size)
{
	return malloc(size);
}

int main(void)
{
	volatile int number = 1;

	rendezvous("ready");
	if (!setjmp(home))
		number += caller_of_ending(1);
	number += jumps_too(number);
	kept = jumps_to_malloc(24);
	rendezvous("done");
	return 0;
}
