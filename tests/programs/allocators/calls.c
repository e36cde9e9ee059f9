/*
 * Every allocation function, in every way in which it can succeed or fail. Each function here is one site; the test
 * has a row with the expected result for each. Nothing else allocates.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include "../handshake.h"
#include "../keep.h"

#define HUGE ((size_t)1 << 62)

/* A size that the compiler does not know to be too large. */
static volatile size_t huge = HUGE;
/* A null pointer that the compiler does not know to be one, lest it turn realloc(NULL) into malloc. */
static void *volatile null;

NOINLINE static void *keep(void *block)
{
	kept = block;
	return block;
}

#define SITE(name) NOINLINE static void name(void)

SITE(malloc_kept) { keep(malloc(1001)); }
SITE(malloc_freed) { free(keep(malloc(1002))); }
SITE(malloc_large_kept) { keep(malloc(3 << 20)); }
SITE(malloc_large_freed) { free(keep(malloc(3 << 20))); }
SITE(malloc_zero_kept) { keep(malloc(0)); }
SITE(malloc_failed) { keep(malloc(huge)); }
SITE(calloc_kept) { keep(calloc(7, 11)); }
SITE(calloc_freed) { free(keep(calloc(7, 12))); }
SITE(calloc_overflow) { keep(calloc(huge, 16)); }
SITE(realloc_null_kept) { keep(realloc(null, 1003)); }
SITE(realloc_null_freed) { free(keep(realloc(null, 1004))); }
SITE(realloc_failed_old) { keep(malloc(1005)); }
SITE(realloc_failed) { keep(realloc(kept, huge)); }
SITE(realloc_zero_old) { keep(malloc(1006)); }
SITE(realloc_zero) { keep(realloc(kept, 0)); }
SITE(realloc_shrunk_old) { keep(malloc(5000)); }
SITE(realloc_shrunk) { keep(realloc(kept, 1007)); }
SITE(realloc_moved_old) { keep(malloc(100)); }
SITE(realloc_moved) { keep(realloc(kept, 1008)); }
SITE(realloc_barrier) { keep(malloc(24)); }
SITE(realloc_large_old) { keep(malloc(3 << 20)); }
SITE(realloc_large) { keep(realloc(kept, 6 << 20)); }
SITE(reallocarray_kept) { keep(reallocarray(null, 5, 13)); }
SITE(reallocarray_freed) { free(keep(reallocarray(null, 5, 14))); }
SITE(reallocarray_old) { keep(malloc(1009)); }
SITE(reallocarray_overflow) { keep(reallocarray(kept, huge, 16)); }
SITE(aligned_alloc_kept) { keep(aligned_alloc(64, 1024)); }
SITE(aligned_alloc_freed) { free(keep(aligned_alloc(64, 1088))); }
SITE(memalign_kept) { keep(memalign(4096, 1010)); }
SITE(memalign_freed) { free(keep(memalign(4096, 1011))); }
SITE(valloc_kept) { keep(valloc(1012)); }
SITE(valloc_freed) { free(keep(valloc(1013))); }
SITE(pvalloc_kept) { keep(pvalloc(1014)); }
SITE(pvalloc_freed) { free(keep(pvalloc(1015))); }

NOINLINE static int aligned(void **block, size_t alignment, size_t size)
{
	return posix_memalign(block, alignment, size);
}

SITE(posix_memalign_kept) { aligned((void **)&kept, 32, 1016); }
SITE(posix_memalign_freed) { void *block; aligned(&block, 32, 1017); free(block); }
SITE(posix_memalign_old) { keep(malloc(1018)); }
/* An invalid alignment leaves the pointer's block alone; so does a size for which there is no memory. */
SITE(posix_memalign_invalid) { if (aligned((void **)&kept, 3, 8) != EINVAL) _exit(2); }
SITE(posix_memalign_huge) { if (aligned((void **)&kept, 32, huge) != ENOMEM) _exit(2); }

/* A block that the tracer never saw allocated. */
static void *unseen[3];
SITE(free_unseen) { free(unseen[0]); }
SITE(realloc_unseen) { keep(realloc(unseen[1], 1019)); }
SITE(realloc_unseen_to_zero) { keep(realloc(unseen[2], 0)); }
SITE(free_null) { free(null); }

static void run_all(void)
{
	malloc_kept();
	malloc_freed();
	malloc_large_kept();
	malloc_large_freed();
	malloc_zero_kept();
	malloc_failed();
	calloc_kept();
	calloc_freed();
	calloc_overflow();
	realloc_null_kept();
	realloc_null_freed();
	/* Each pair is the block, then the call that changes it. */
	realloc_failed_old();
	realloc_failed();
	realloc_zero_old();
	realloc_zero();
	realloc_shrunk_old();
	realloc_shrunk();
	realloc_moved_old();
	{
		void *old = kept;

		/* The block behind this one keeps it from growing in place. */
		realloc_barrier();
		kept = old;
	}
	realloc_moved();
	realloc_large_old();
	realloc_large();
	reallocarray_kept();
	reallocarray_freed();
	reallocarray_old();
	reallocarray_overflow();
	aligned_alloc_kept();
	aligned_alloc_freed();
	memalign_kept();
	memalign_freed();
	valloc_kept();
	valloc_freed();
	pvalloc_kept();
	pvalloc_freed();
	posix_memalign_kept();
	posix_memalign_freed();
	posix_memalign_old();
	posix_memalign_invalid();
	posix_memalign_huge();
	free_unseen();
	realloc_unseen();
	realloc_unseen_to_zero();
	free_null();
}

int main(void)
{
	for (int block = 0; block < 3; block++)
		unseen[block] = malloc(100);
	rendezvous("ready");
	run_all();
	rendezvous("done");
	return 0;
}
