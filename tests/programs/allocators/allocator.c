/* Every allocation function of C that all allocators have, kept and freed: each function here is one site. */
#define _GNU_SOURCE
#include <malloc.h>
#include "../handshake.h"
#include "../keep.h"

#define SITE(name) NOINLINE static void name(void)

static void *volatile null;

NOINLINE static void *keep(void *block)
{
	kept = block;
	return block;
}

NOINLINE static void *stored(size_t alignment, size_t size)
{
	void *block;

	if (posix_memalign(&block, alignment, size))
		_exit(2);
	return block;
}

SITE(malloc_kept) { keep(malloc(1001)); }
SITE(malloc_freed) { free(keep(malloc(1002))); }
SITE(malloc_large_kept) { keep(malloc(3 << 20)); }
SITE(malloc_large_freed) { free(keep(malloc(3 << 20))); }
SITE(calloc_kept) { keep(calloc(7, 11)); }
SITE(calloc_freed) { free(keep(calloc(7, 12))); }
SITE(realloc_old) { keep(malloc(100)); }
SITE(realloc_kept) { keep(realloc(kept, 100000)); }
SITE(realloc_null_freed) { free(keep(realloc(null, 1004))); }
SITE(memalign_kept) { keep(memalign(256, 1010)); }
SITE(memalign_freed) { free(keep(memalign(256, 1011))); }
SITE(posix_memalign_kept) { keep(stored(64, 1016)); }
SITE(posix_memalign_freed) { free(keep(stored(64, 1017))); }
SITE(aligned_alloc_kept) { keep(aligned_alloc(64, 1024)); }
SITE(aligned_alloc_freed) { free(keep(aligned_alloc(64, 1088))); }

int main(void)
{
	rendezvous("ready");
	malloc_kept();
	malloc_freed();
	malloc_large_kept();
	malloc_large_freed();
	calloc_kept();
	calloc_freed();
	realloc_old();
	realloc_kept();
	realloc_null_freed();
	memalign_kept();
	memalign_freed();
	posix_memalign_kept();
	posix_memalign_freed();
	aligned_alloc_kept();
	aligned_alloc_freed();
	rendezvous("done");
	return 0;
}
