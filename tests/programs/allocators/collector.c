/* Allocates by the Boehm collector, with collections switched off. Each function is one site. */
#include <gc.h>
#include "../handshake.h"
#include "../keep.h"

#define SITE(name) NOINLINE static void name(void)

static void *volatile all[8];
static int number;

NOINLINE static void *keep(void *block)
{
	all[number++] = block;
	return block;
}

SITE(malloc_kept) { keep(GC_malloc(1001)); }
SITE(malloc_freed) { GC_free(keep(GC_malloc(1002))); }
SITE(atomic_kept) { keep(GC_malloc_atomic(1003)); }
SITE(uncollectable_freed) { GC_free(keep(GC_malloc_uncollectable(1004))); }
SITE(realloc_old) { keep(GC_malloc(100)); }
SITE(realloc_kept) { keep(GC_realloc(all[number - 1], 100000)); }

int main(void)
{
	GC_INIT();
	GC_disable();
	rendezvous("ready");
	malloc_kept();
	malloc_freed();
	atomic_kept();
	uncollectable_freed();
	realloc_old();
	realloc_kept();
	rendezvous("done");
	return 0;
}
