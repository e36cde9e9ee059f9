/* An allocator that the program defines, under names that memleak does not know. Each function is one site. */
#include "../handshake.h"
#include "../keep.h"

static char memory[1 << 16];
static size_t used;

NOINLINE void *pool_get(size_t size)
{
	void *block = memory + used;

	used += (size + 15) & ~(size_t)15;
	return block;
}

NOINLINE int pool_get_many(void **block, size_t number, size_t size)
{
	*block = pool_get(number * size);
	return 0;
}

NOINLINE void *pool_resize(void *block, size_t size)
{
	(void)block;
	return pool_get(size);
}

NOINLINE void pool_put(void *block)
{
	*(volatile char *)block = 0;
}

#define SITE(name) NOINLINE static void name(void)

SITE(get_kept) { kept = pool_get(1001); }
SITE(get_freed) { pool_put(kept = pool_get(1002)); }
SITE(many_kept) { if (pool_get_many((void **)&kept, 10, 11)) _exit(2); }
SITE(resize_old) { kept = pool_get(100); }
SITE(resize_kept) { kept = pool_resize(kept, 200); }
SITE(malloc_kept) { kept = malloc(33); }

int main(void)
{
	rendezvous("ready");
	get_kept();
	get_freed();
	many_kept();
	resize_old();
	resize_kept();
	malloc_kept();
	rendezvous("done");
	return 0;
}
