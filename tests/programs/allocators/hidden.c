/* Has a malloc of its own that it hides from the C library, which uses its own. */
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

int main(void)
{
	say("ready");
	await_line();
	for (volatile int i = 0; i < 5; i++)
		leaky();
	kept = strdup("from the C library's");
	say("done");
	await_line();
	return 0;
}
