/* The part that announces: in a program, or in a library. */
#define _SDT_HAS_SEMAPHORES 1
#include "provider.h"
#include <stdlib.h>
#include <sys/sdt.h>

__extension__ unsigned short otel_memory_alloc_semaphore __attribute__((unused, section(".probes"), visibility("hidden")));
__extension__ unsigned short otel_memory_free_semaphore __attribute__((unused, section(".probes"), visibility("hidden")));

__attribute__((noinline)) void announce(void *block, size_t size, size_t weighted)
{
	if (*(volatile unsigned short *)&otel_memory_alloc_semaphore)
		DTRACE_PROBE3(otel_memory, alloc, block, size, weighted);
}

__attribute__((noinline)) void *announced_block(size_t size, size_t weighted)
{
	void *block = malloc(size);

	announce(block, size, weighted);
	return block;
}

__attribute__((noinline)) void announced_free(void *block)
{
	if (*(volatile unsigned short *)&otel_memory_free_semaphore)
		DTRACE_PROBE1(otel_memory, free, block);
	free(block);
}

unsigned listeners_of_allocations(void)
{
	return *(volatile unsigned short *)&otel_memory_alloc_semaphore;
}

unsigned listeners_of_frees(void)
{
	return *(volatile unsigned short *)&otel_memory_free_semaphore;
}
