/* Tools for the kinds in kinds.cpp: counts, and how copies of pointers are kept out of stacks and registers. */
#pragma once
#include <alloca.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOINLINE __attribute__((noipa))

/* Maximum number of blocks of a kind, so that tables of them have a fixed size. */
constexpr size_t MOST = 500;
/* Size of blocks whose size does not matter. */
constexpr size_t SIZE = 64;

/* Number of blocks of each kind whose number is arbitrary. */
static size_t wanted = 100;

/* State of a block, as the program knows it. */
enum class Truth {
	/* A pointer that the program will use is in its memory or registers. */
	held,
	/* The program can compute the block's address, but has no pointer in any recognizable form. */
	hidden,
	/* The pointer is in the kernel, which will return it. */
	kernel,
	/* No pointer that the program could use is left. */
	lost,
	/* As `lost`, but a pointer is left in memory that is in use: no reader of memory can tell. */
	stale,
};

/* Number of blocks of a kind. Those that are lost, but not definitely, are lost indirectly: lost ones lead to them. */
struct Count {
	size_t blocks;
	size_t definite;
};

static Count each(size_t blocks)
{
	return {blocks, blocks};
}

/* Declares a kind, whose blocks are identified by this function in their stacks. */
#define KIND(name)                                \
	extern "C" NOINLINE void *name(size_t size)   \
	{                                             \
		void *block = malloc(size);               \
                                                  \
		if (!block)                               \
			fail(#name);                          \
		/* Clears pointers that earlier users of the memory may have left. */ \
		return memset(block, 0, size);            \
	}

using Allocate = void *(size_t);

[[noreturn]] static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

/* Clears all registers that may still contain a pointer, for the functions that are called next. */
static inline void clear_registers()
{
#ifdef __x86_64__
	asm volatile("xor %%eax, %%eax; xor %%ecx, %%ecx; xor %%edx, %%edx; xor %%esi, %%esi; xor %%edi, %%edi;"
				 "xor %%r8d, %%r8d; xor %%r9d, %%r9d; xor %%r10d, %%r10d; xor %%r11d, %%r11d;"
				 "pxor %%xmm0, %%xmm0; pxor %%xmm1, %%xmm1; pxor %%xmm2, %%xmm2; pxor %%xmm3, %%xmm3;"
				 "pxor %%xmm4, %%xmm4; pxor %%xmm5, %%xmm5; pxor %%xmm6, %%xmm6; pxor %%xmm7, %%xmm7;"
				 "pxor %%xmm8, %%xmm8; pxor %%xmm9, %%xmm9; pxor %%xmm10, %%xmm10; pxor %%xmm11, %%xmm11;"
				 "pxor %%xmm12, %%xmm12; pxor %%xmm13, %%xmm13; pxor %%xmm14, %%xmm14; pxor %%xmm15, %%xmm15"
				 :
				 :
				 : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
				   "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}

/* Overwrites this much of the stack below the caller, and the registers. */
NOINLINE static void scrub(size_t size)
{
	void *below = alloca(size);

	memset(below, 0, size);
	asm volatile("" : : "r"(below) : "memory");
	clear_registers();
}

/* Size that threads and coroutines scrub: more than any set-up uses. */
constexpr size_t SCRUBBED = 32 << 10;
constexpr size_t STACK = 64 << 10;

/* Writes new blocks to a table. */
NOINLINE static void fill(void *volatile *table, size_t count, Allocate *allocate)
{
	for (size_t at = 0; at < count; at++)
		table[at] = allocate(SIZE);
}

/* Allocates a block that holds others and is not under test: it is held. */
NOINLINE static void *scaffold(size_t size)
{
	void *block = calloc(1, size);

	if (!block)
		fail("scaffold");
	return block;
}

/* Sleeps in the kernel forever. */
static void wait_by_futex()
{
	static uint32_t word;

	for (;;)
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
}

static sem_t settled;

/* Starts a thread and waits until it says by `settle` that it is set up. */
static void start_thread(void *(*run)(void *), void *argument)
{
	pthread_t thread;

	if (pthread_create(&thread, nullptr, run, argument) != 0)
		fail("pthread_create");
	while (sem_wait(&settled) != 0) {
	}
}

static inline void settle()
{
	scrub(SCRUBBED);
	sem_post(&settled);
}

/* Maps memory, outside any allocator. */
static void *volatile *map(size_t size, int flags, int file)
{
	void *start = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);

	if (start == MAP_FAILED)
		fail("mmap");
	return static_cast<void *volatile *>(start);
}
