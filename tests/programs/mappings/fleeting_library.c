/* A short-lived library: allocates when it is loaded, when it is used and when it is unloaded, and keeps nothing. */
#include <string.h>
#include "../keep.h"

static char *loaded;

__attribute__((constructor)) static void load(void)
{
	loaded = malloc(300);
	if (loaded)
		memset(loaded, 'l', 300);
}

__attribute__((destructor)) static void unload(void)
{
	free(loaded);
	kept = malloc(40);
	free(kept);
}

/* Returns 0 if all is well. */
NOINLINE int use(void)
{
	void *block = malloc(500);

	if (!block || !loaded || loaded[299] != 'l')
		return 1;
	kept = block;
	free(block);
	return 0;
}
