/*
 * Memory of freed blocks that the allocator gives back to the kernel, and that is then reused to hold the only pointers
 * to blocks: by a thread's stack, by memory that the program maps or moves there, and by memory from the break.
 *
 * usage: reused BYTES      of the memory that is reused
 *
 * Once everything stays as it is until a line comes, it says `ready`, with the number of ways that got the same memory.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../handshake.h"

enum { BLOCKS = 20, LESS = 64 << 10 };

#define NOINLINE __attribute__((noinline))
/* The barrier keeps the function on the stack while malloc runs. */
#define KIND(name)                                                                                                     \
	NOINLINE void *name(void)                                                                                      \
	{                                                                                                              \
		void *block = malloc(64);                                                                              \
                                                                                                                       \
		asm volatile("" : : : "memory");                                                                       \
		return block;                                                                                          \
	}

KIND(held_on_stack)
KIND(held_in_mapping)
KIND(held_in_moved)
KIND(held_above_break)

static size_t big;
static int reused;
static sem_t settled;

/* Allocates a large block and frees it; returns where it was. */
NOINLINE static uintptr_t freed(void)
{
	char *block = malloc(big);
	uintptr_t address = (uintptr_t)block;

	block[big / 2] = 1;
	free(block);
	return address;
}

/* Holds blocks in `table`, which should be in the memory that was freed at `was`. */
NOINLINE static void fill(void *volatile *table, void *(*allocate)(void), uintptr_t was)
{
	reused += (uintptr_t)table >= was && (uintptr_t)table < was + big;
	for (int number = 0; number < BLOCKS; number++)
		table[number] = allocate();
}

/* Overwrites data that calls have left on the stack. */
NOINLINE static void clear_stack(void)
{
	volatile char deep[32 << 10];

	for (size_t at = 0; at < sizeof(deep); at++)
		deep[at] = 0;
}

static void *run(void *was)
{
	void *volatile table[BLOCKS];

	fill(table, held_on_stack, (uintptr_t)was);
	sem_post(&settled);
	for (;;)
		pause();
	/* Not reached: keeps the table alive. */
	return table[0];
}

static void hold_on_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	uintptr_t was = freed();

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, big - LESS);
	if (pthread_create(&thread, &attributes, run, (void *)was))
		abort();
	sem_wait(&settled);
}

static void hold_in_mapping(void)
{
	uintptr_t was = freed();
	char *mapping = mmap(NULL, big - LESS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mapping == MAP_FAILED)
		abort();
	fill((void *)(mapping + big / 2), held_in_mapping, was);
}

static void hold_in_moved(void)
{
	unsigned char resident;
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t was = freed();
	char *to = (char *)((was + big / 2) & ~(uintptr_t)4095);

	/* Only where nothing is mapped. */
	if (page == MAP_FAILED || mincore(to, 4096, &resident) == 0)
		return;
	page = mremap(page, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	if (page == MAP_FAILED)
		abort();
	fill((void *)page, held_in_moved, was);
}

static void hold_above_break(void)
{
	uintptr_t was;
	char *more;

	/* For glibc: large blocks are at the break, which goes down when they are freed. */
	mallopt(M_MMAP_THRESHOLD, 2 * big);
	mallopt(M_TRIM_THRESHOLD, 64 << 10);
	was = freed();
	more = sbrk(big);
	if (more == (void *)-1)
		abort();
	fill((void *)(((uintptr_t)more + big / 2) & ~(uintptr_t)15), held_above_break, was);
}

int main(int count, char **arguments)
{
	char ready[32];

	if (count != 2)
		return 1;
	big = strtoul(arguments[1], NULL, 10);
	/* For glibc: the threshold stays, though such blocks are freed. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	sem_init(&settled, 0, 0);
	rendezvous("started");
	hold_on_stack();
	hold_in_mapping();
	hold_in_moved();
	hold_above_break();
	clear_stack();
	snprintf(ready, sizeof(ready), "ready %d", reused);
	rendezvous(ready);
	return 0;
}
