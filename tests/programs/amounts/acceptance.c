/*
 * KIND SIZE exits|stays: allocates one block of SIZE by the function KIND, after a line was read, and exits or waits
 * for another line. Allocates nothing else.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include "../handshake.h"
#include "../keep.h"

NOINLINE static void *allocate(const char *kind, size_t size)
{
	void *block = NULL;

	if (!strcmp(kind, "malloc"))
		return malloc(size);
	if (!strcmp(kind, "calloc"))
		return calloc(size / 10, 10);
	if (!strcmp(kind, "realloc"))
		return realloc(malloc(10), size);
	if (!strcmp(kind, "posix_memalign"))
		return posix_memalign(&block, 512, size) ? NULL : block;
	if (!strcmp(kind, "valloc"))
		return valloc(size);
	if (!strcmp(kind, "memalign"))
		return memalign(512, size);
	if (!strcmp(kind, "pvalloc"))
		return pvalloc(size);
	if (!strcmp(kind, "aligned_alloc"))
		return aligned_alloc(512, size);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 1;
	await_line();
	kept = allocate(argv[1], atol(argv[2]));
	if (!kept)
		return 2;
	if (!strcmp(argv[3], "stays"))
		await_line();
	return 0;
}
