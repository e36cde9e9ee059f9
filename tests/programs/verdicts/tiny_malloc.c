/*
 * An unknown allocator, as a library: it reuses blocks of a class in the reverse order of their frees. With OTHER, it
 * has another allocating function beside those of C.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { CLASSES = 40, HEADER = 16, PART = 1 << 20 };

/* Header before each block. */
struct header {
	uint64_t class;
	struct header *next;
};

static struct header *unused[CLASSES];
static char *rest, *end;
static char lock;

static void *take(size_t size, size_t alignment)
{
	uint64_t class = 5;
	struct header *header;

	while (class < CLASSES && (1ULL << class) < size + HEADER + alignment)
		class++;
	if (class == CLASSES)
		return NULL;
	while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
	}
	header = unused[class];
	if (header) {
		unused[class] = header->next;
	} else {
		size_t bytes = 1ULL << class;

		if ((size_t)(end - rest) < bytes) {
			size_t part = bytes > PART ? bytes : PART;

			rest = mmap(NULL, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			end = rest + part;
		}
		header = (struct header *)rest;
		rest += bytes;
	}
	__atomic_clear(&lock, __ATOMIC_RELEASE);
	header->class = class;
	if (alignment > HEADER) {
		uintptr_t block = ((uintptr_t)header + HEADER + alignment - 1) & ~(alignment - 1);
		struct header *moved = (struct header *)(block - HEADER);

		/* Its memory is not reused. */
		if (moved != header)
			*moved = (struct header){ .class = CLASSES };
		return (void *)block;
	}
	return header + 1;
}

void *malloc(size_t size)
{
	return take(size, HEADER);
}

#ifdef OTHER
void *other_malloc(size_t size)
{
	return take(size, HEADER);
}
#endif

void free(void *block)
{
	struct header *header = (struct header *)block - 1;

	if (!block || header->class == CLASSES)
		return;
	while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {
	}
	header->next = unused[header->class];
	unused[header->class] = header;
	__atomic_clear(&lock, __ATOMIC_RELEASE);
}

void *calloc(size_t count, size_t size)
{
	void *block = take(count * size, HEADER);

	return block ? memset(block, 0, count * size) : NULL;
}

void *realloc(void *old, size_t size)
{
	void *block = take(size, HEADER);
	size_t bytes;

	if (!old || !block)
		return block;
	bytes = (1ULL << ((struct header *)old)[-1].class) - 2 * HEADER;
	memcpy(block, old, bytes < size ? bytes : size);
	free(old);
	return block;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return take(size, alignment);
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
	*block = take(size, alignment);
	return *block ? 0 : ENOMEM;
}
