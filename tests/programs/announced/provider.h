/* Announces blocks by OpenTelemetry's contract for memory profiling: otel_memory:alloc and otel_memory:free. */
#pragma once
#include <stddef.h>

/* Allocates a block and announces it with the weight `weighted` in bytes. */
void *announced_block(size_t size, size_t weighted);
/* Announces an address as a block of this size, whatever is there. */
void announce(void *block, size_t size, size_t weighted);
void announced_free(void *block);
/* Number of tracers attached to the probe of allocations, and to that of frees. */
unsigned listeners_of_allocations(void);
unsigned listeners_of_frees(void);
