/* Defines a malloc, hidden from the C library, which uses its own; with OWN_FREE, its declaration, also a free. */
#include <string.h>
#include "../handshake.h"
#include "../keep.h"

static char pool[1 << 16] __attribute__((aligned(16)));
static size_t used;

__attribute__((visibility("hidden"))) NOINLINE void *malloc(size_t size)
{
	void *block = pool + used;

	used += (size + 15) / 16 * 16;
	return block;
}

NOINLINE static void leaky(void)
{
	kept = malloc(100);
}

#ifdef OWN_FREE
/* Another name in C, since stdlib.h declares free. */
OWN_FREE NOINLINE void own_free(void *block) __asm__("free");

OWN_FREE NOINLINE void own_free(void *block)
{
	if (block)
		*(volatile char *)block = 0;
}

NOINLINE static void passing(void)
{
	void *block = malloc(50);

	kept = block;
	own_free(block);
}
#else
static void passing(void)
{
}
#endif

int main(void)
{
	say("ready");
	await_line();
	for (volatile int i = 0; i < 5; i++) {
		leaky();
		passing();
	}
	kept = strdup("from the C library's");
	say("done");
	await_line();
	return 0;
}
