/* Frees by sdallocx alone, as Rust's jemalloc allocator does. */
#include "../handshake.h"
#include "../keep.h"

void *je_malloc(size_t size);
void *je_mallocx(size_t size, int flags);
void je_sdallocx(void *block, size_t size, int flags);

#define SITE(name) NOINLINE static void name(void)

NOINLINE static void *keep(void *block)
{
	kept = block;
	return block;
}

SITE(plain_kept) { keep(je_malloc(1000)); }
SITE(mallocx_kept) { keep(je_mallocx(1002, 0)); }
SITE(plain_freed) { je_sdallocx(keep(je_malloc(1001)), 1001, 0); }

int main(void)
{
	je_sdallocx(je_malloc(1), 1, 0);
	rendezvous("ready");
	plain_kept();
	plain_freed();
	mallocx_kept();
	rendezvous("done");
	return 0;
}
