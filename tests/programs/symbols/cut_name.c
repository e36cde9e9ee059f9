/*
 * A process whose name is cut within a character, and that generates code: 10 blocks are allocated in `leaf`, which
 * generated code calls that only the process's map for perf names, `generated_caller`.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include "../handshake.h"
#include "../keep.h"

/* 16 bytes; the kernel keeps 15, and with them the first half of the last character. */
static const char NAME[] = "the-worker-caf\u00e9";

/* void template_begin(void (*callee)(void)): calls it from a frame with a frame pointer. */
extern const char template_begin[], template_end[];
#ifdef __x86_64__
__asm__(".text\n"
	"template_begin: push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret\n"
	"template_end:\n");
#else
__asm__(".text\n"
	"template_begin: stp x29, x30, [sp, #-16]!; mov x29, sp; blr x0; ldp x29, x30, [sp], #16; ret\n"
	"template_end:\n");
#endif

NOINLINE static void leaf(void)
{
	for (int block = 0; block < 10; block++)
		LEAK();
}

int main(void)
{
	size_t length = template_end - template_begin;
	char path[64];
	FILE *map;
	char *code = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (code == MAP_FAILED || prctl(PR_SET_NAME, NAME))
		return 1;
	memcpy(code, template_begin, length);
	__builtin___clear_cache(code, code + length);
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	map = fopen(path, "w");
	if (!map || mprotect(code, length, PROT_READ | PROT_EXEC))
		return 1;
	fprintf(map, "%lx %zx generated_caller\n", (unsigned long)(uintptr_t)code, length);
	fclose(map);
	rendezvous("ready");
	((void (*)(void (*)(void)))code)(leaf);
	rendezvous("done");
	return remove(path) != 0;
}
