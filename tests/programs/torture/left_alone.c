/*
 * Assembly between functions that keep frame pointers: `thunk` and `deep_thunk` leave their caller's frame pointer
 * alone, `keeper` sets up its own. All call their argument. NO_CFI removes the CFI only. Compile with frame pointers.
 */
#include "../handshake.h"
#include "../keep.h"

#ifdef NO_CFI
#define CFI(directive) ""
#else
#define CFI(directive) "	." directive "\n"
#endif

void thunk(void (*call)(void));
void deep_thunk(void (*call)(void));
void keeper(void (*call)(void));
__asm__(".text\n"
	".globl thunk\n"
	".type thunk, @function\n"
	"thunk:\n" CFI("cfi_startproc")
	"	sub $24, %rsp\n" CFI("cfi_adjust_cfa_offset 24")
	"	call *%rdi\n"
	"	mov %rax, 8(%rsp)\n"
	"	add $24, %rsp\n" CFI("cfi_adjust_cfa_offset -24")
	"	ret\n" CFI("cfi_endproc")
	".size thunk, . - thunk\n"
	".globl deep_thunk\n"
	".type deep_thunk, @function\n"
	"deep_thunk:\n" CFI("cfi_startproc")
	"	sub $24, %rsp\n" CFI("cfi_adjust_cfa_offset 24")
	"	call thunk\n"
	"	mov %rax, 8(%rsp)\n"
	"	add $24, %rsp\n" CFI("cfi_adjust_cfa_offset -24")
	"	ret\n" CFI("cfi_endproc")
	".size deep_thunk, . - deep_thunk\n"
	".globl keeper\n"
	".type keeper, @function\n"
	"keeper:\n" CFI("cfi_startproc")
	"	push %rbp\n" CFI("cfi_adjust_cfa_offset 8") CFI("cfi_rel_offset rbp, 0")
	"	mov %rsp, %rbp\n" CFI("cfi_def_cfa_register rbp")
	"	sub $48, %rsp\n"
	"	call *%rdi\n"
	"	leave\n" CFI("cfi_def_cfa rsp, 8")
	"	ret\n" CFI("cfi_endproc")
	".size keeper, . - keeper\n");

NOINLINE static void leak(void)
{
	LEAK();
}

NOINLINE static void through_thunk(void)
{
	thunk(leak);
	LEAK();
}

NOINLINE static void through_two(void)
{
	deep_thunk(leak);
	LEAK();
}

/* Calls the thunk by a jump, so that its caller calls another function than the one that returns to it. */
NOINLINE static void jumps_to_thunk(void)
{
	thunk(leak);
}

NOINLINE static void calls_jumper(void)
{
	jumps_to_thunk();
	LEAK();
}

NOINLINE static void through_keeper(void)
{
	keeper(leak);
	LEAK();
}

/* Frames without CFI one above the other: the inner one leaves the frame pointer of the outer alone. */
NOINLINE static void through_both(void)
{
	keeper(through_thunk);
	LEAK();
}

NOINLINE static void serve(void)
{
	through_thunk();
	through_two();
	calls_jumper();
	through_keeper();
	through_both();
	LEAK();
}

int main(void)
{
	rendezvous("ready");
	serve();
	rendezvous("done");
	return 0;
}
