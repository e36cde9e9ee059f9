/*
 * Leaks in a program whose code is mapped in unusual ways: main -> leak_a -> leak_b -> leak_c -> malloc.
 * -DLIBRARY, -DMAIN: only the leaking functions, only main. -DHOT: leak_c is in section .hot. -DMOVE: moves the text to
 * memory without a file, at its addresses. -DGENERATE: leak_c is called by generated code, which is in a memfd that is
 * mapped twice or, with an argument, in memory without a file. -DPATCH: as -DMOVE, but some bytes differ from the file.
 */
#define _GNU_SOURCE
#include "../handshake.h"
#include "../keep.h"
#include <stdint.h>
#include <sys/mman.h>

#ifdef HOT
#define PLACE NOINLINE __attribute__((section(".hot")))
#else
#define PLACE NOINLINE
#endif

#ifdef MAIN
extern void leak_a(void);
#else
PLACE void leak_c(void)
{
	LEAK();
}

#ifdef GENERATE
/* push %rbp; mov %rsp,%rbp; sub $32,%rsp; movabs $leak_c,%rax; call *%rax; leave; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 32,   0x48, 0xb8, 0,
				     0,	   0,	 0,    0,    0,	   0,	 0,    0xff, 0xd0, 0xc9, 0xc3};

static void *generate(int shared)
{
	const uint64_t callee = (uintptr_t)leak_c;
	unsigned char *write, *run;

	if (shared) {
		int file = memfd_create("doublemapper", 0);

		if (file < 0 || ftruncate(file, 65536))
			_exit(1);
		write = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		run = mmap(NULL, 65536, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
	} else {
		run = write = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	if (run == MAP_FAILED || write == MAP_FAILED)
		_exit(1);
	memcpy(write, code, sizeof(code));
	memcpy(write + 10, &callee, sizeof(callee));
	return run;
}

static void (*generated)(void);
#define leak_c generated
#endif

NOINLINE void leak_b(void)
{
	leak_c();
	__asm__ volatile("" ::: "memory");
}

NOINLINE void leak_a(void)
{
	leak_b();
	__asm__ volatile("" ::: "memory");
}
#endif

#ifdef MOVE
extern char __executable_start[], etext[];
extern void _start(void), never_called(void);
__asm__(".text\nnever_called: .fill 256, 1, 0x90\nret");

static void move_text(void)
{
	const uintptr_t page = 4096;
	const uintptr_t start = (uintptr_t)_start & -page, end = ((uintptr_t)etext + page - 1) & -page;
	char *copy = mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (copy == MAP_FAILED)
		_exit(1);
	memcpy(copy, (void *)start, end - start);
#ifdef PATCH
	memset(copy + ((uintptr_t)never_called - start), 0xcc, 256);
#endif
	if (mprotect(copy, end - start, PROT_READ | PROT_EXEC) ||
	    mremap(copy, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) == MAP_FAILED)
		_exit(1);
}
#endif

#ifndef LIBRARY
int main(int argc, char **argv)
{
	(void)argc;
	(void)argv;
#ifdef GENERATE
	generated = (void (*)(void))generate(argc < 2);
#endif
#ifdef MOVE
	move_text();
#endif
	rendezvous("ready");
	leak_a();
	rendezvous("done");
	return 0;
}
#endif
