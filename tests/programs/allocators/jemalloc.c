/* The functions that jemalloc has beside those of C, under a prefix if there is one. Each function is one site. */
#include "../handshake.h"
#include "../keep.h"

#ifndef PREFIX
#define PREFIX(name) name
#endif

void *PREFIX(mallocx)(size_t size, int flags);
void *PREFIX(rallocx)(void *block, size_t size, int flags);
size_t PREFIX(xallocx)(void *block, size_t size, size_t extra, int flags);
void PREFIX(dallocx)(void *block, int flags);
void PREFIX(sdallocx)(void *block, size_t size, int flags);
void *PREFIX(malloc)(size_t size);
void PREFIX(free)(void *block);

#define SITE(name) NOINLINE static void name(void)

NOINLINE static void *keep(void *block)
{
	kept = block;
	return block;
}

SITE(plain_kept) { keep(PREFIX(malloc)(1000)); }
SITE(plain_freed) { PREFIX(free)(keep(PREFIX(malloc)(1001))); }
SITE(mallocx_kept) { keep(PREFIX(mallocx)(1002, 0)); }
SITE(mallocx_dallocx) { PREFIX(dallocx)(keep(PREFIX(mallocx)(1003, 0)), 0); }
SITE(mallocx_sdallocx) { PREFIX(sdallocx)(keep(PREFIX(mallocx)(1004, 0)), 1004, 0); }
SITE(rallocx_old) { keep(PREFIX(mallocx)(100, 0)); }
SITE(rallocx_kept) { keep(PREFIX(rallocx)(kept, 100000, 0)); }
/* 4000 is of the same size class as 3600. */
SITE(xallocx_old) { keep(PREFIX(mallocx)(3600, 0)); }
SITE(xallocx_kept) { if (PREFIX(xallocx)(kept, 4000, 0, 0) < 4000) _exit(2); }
/* A small block does not grow in place. */
SITE(xallocx_failed_old) { keep(PREFIX(mallocx)(64, 0)); }
SITE(xallocx_failed) { if (PREFIX(xallocx)(kept, 1 << 20, 0, 0) >= 1 << 20) _exit(3); }

int main(void)
{
	PREFIX(free)(PREFIX(malloc)(1));
	rendezvous("ready");
	plain_kept();
	plain_freed();
	mallocx_kept();
	mallocx_dallocx();
	mallocx_sdallocx();
	rallocx_old();
	rallocx_kept();
	xallocx_old();
	xallocx_kept();
	xallocx_failed_old();
	xallocx_failed();
	rendezvous("done");
	return 0;
}
