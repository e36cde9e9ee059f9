/*
 * Generated code between functions that keep frame pointers: one function leaves the frame pointer of its caller alone,
 * one sets up its own. Both call `leak`. Compile it with frame pointers.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include "../handshake.h"
#include "../keep.h"

#define CALL_RAX 0xff, 0xd0
#define MOVABS_RAX 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0

/* sub $24, %rsp; movabs $leak, %rax; call *%rax; mov %rax, 8(%rsp); add $24, %rsp; ret */
static unsigned char leaving_alone[] = { 0x48, 0x83, 0xec, 24,	 MOVABS_RAX, CALL_RAX, 0x48, 0x89,
					 0x44, 0x24, 0x08, 0x48, 0x83,	     0xc4,     24,   0xc3 };
/* push %rbp; mov %rsp, %rbp; sub $16, %rsp; movabs $leak, %rax; call *%rax; mov %rax, 8(%rsp); leave; ret */
static unsigned char keeping[] = { 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16,   MOVABS_RAX,
				   CALL_RAX, 0x48, 0x89, 0x44, 0x24, 0x08, 0xc9, 0xc3 };

typedef void (*generated)(void);

NOINLINE static void leak(void)
{
	LEAK();
}

static generated place(unsigned char *at, unsigned char *code, size_t bytes, size_t address_at)
{
	uint64_t address = (uint64_t)leak;

	memcpy(code + address_at, &address, 8);
	memcpy(at, code, bytes);
	return (generated)at;
}

NOINLINE static void left_alone(generated call)
{
	call();
	LEAK();
}

NOINLINE static void kept_own(generated call)
{
	call();
	LEAK();
}

int main(void)
{
	unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return 1;
	rendezvous("ready");
	left_alone(place(memory, leaving_alone, sizeof(leaving_alone), 6));
	kept_own(place(memory + 512, keeping, sizeof(keeping), 10));
	rendezvous("done");
	return 0;
}
