/* Every allocation function that all C allocators have, with blocks kept and freed: each function here is one site. */
#define _GNU_SOURCE
#include <malloc.h>
#include <string.h>
#include "../handshake.h"
#include "../keep.h"

#define SITE(name) NOINLINE static void name(void)

static void *volatile null;
/* A string of 2000 bytes. */
static char text[2001];

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
#ifdef STRINGS
SITE(strdup_kept) { keep(strdup(text)); }
SITE(strdup_freed) { free(keep(strdup(text + 1))); }
SITE(strndup_kept) { keep(strndup(text, 1500)); }
SITE(strndup_freed) { free(keep(strndup(text, 5000))); }
#endif

int main(void)
{
	memset(text, 'x', sizeof(text) - 1);
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
#ifdef STRINGS
	strdup_kept();
	strdup_freed();
	strndup_kept();
	strndup_freed();
#endif
	rendezvous("done");
	return 0;
}
