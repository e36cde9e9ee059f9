/* A parent and its child by fork, which write to the same inherited memory, and to separate new memory. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../handshake.h"

#define NOINLINE __attribute__((noipa))
#define MIB (1UL << 20)

NOINLINE static void touch(volatile char *memory, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 4096)
		memory[at]++;
}

static char *anonymous(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(memory, bytes, MADV_NOHUGEPAGE);
	return memory;
}

NOINLINE static void of_parent(char *memory)
{
	touch(memory, 4 * MIB);
}

/* Copies of pages that the parent already has: the parent does not grow. */
NOINLINE static void copied_by_parent(char *before, char *memory)
{
	touch(before, 2 * MIB);
	touch(memory, 4 * MIB);
}

NOINLINE static void copied_by_child(char *before, char *memory)
{
	touch(before, 2 * MIB);
	touch(memory, 4 * MIB);
}

NOINLINE static void of_child(void)
{
	touch(anonymous(3 * MIB), 3 * MIB);
}

int main(void)
{
	char *before = anonymous(2 * MIB), *memory = anonymous(4 * MIB);
	pid_t child;

	touch(before, 2 * MIB);
	rendezvous("ready");
	of_parent(memory);
	child = fork();
	if (child == 0) {
		copied_by_child(before, memory);
		of_child();
		say("child");
		pause();
	}
	copied_by_parent(before, memory);
	await_line();
	kill(child, 9);
	waitpid(child, NULL, 0);
	rendezvous("done");
	return 0;
}
