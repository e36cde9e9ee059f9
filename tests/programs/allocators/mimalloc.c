/* Functions of mimalloc that call no other of its functions. Each function here is one site. */
#include <string.h>
#include "../handshake.h"
#include "../keep.h"

char *mi_strdup(const char *text);
char *mi_strndup(const char *text, size_t length);
char *mi_heap_strdup(void *heap, const char *text);
char *mi_heap_strndup(void *heap, const char *text, size_t length);
void *mi_heap_new(void);
void *mi_malloc(size_t size);
void mi_free(void *block);

#define SITE(name) NOINLINE static void name(void)

/* A string of 100,000 bytes. */
static char text[100001];
static void *heap;

NOINLINE static void *keep(void *block)
{
	kept = block;
	return block;
}

SITE(malloc_kept) { keep(mi_malloc(1001)); }
SITE(strdup_kept) { keep(mi_strdup(text)); }
SITE(strdup_freed) { mi_free(keep(mi_strdup(text + 1))); }
SITE(strdup_empty_kept) { keep(mi_strdup(text + 100000)); }
SITE(strndup_kept) { keep(mi_strndup(text, 1500)); }
SITE(strndup_freed) { mi_free(keep(mi_strndup(text + 99990, 11))); }
SITE(heap_strdup_kept) { keep(mi_heap_strdup(heap, text + 90000)); }
SITE(heap_strndup_freed) { mi_free(keep(mi_heap_strndup(heap, text, 0))); }

int main(void)
{
	memset(text, 'x', sizeof(text) - 1);
	heap = mi_heap_new();
	rendezvous("ready");
	malloc_kept();
	strdup_kept();
	strdup_freed();
	strdup_empty_kept();
	strndup_kept();
	strndup_freed();
	heap_strdup_kept();
	heap_strndup_freed();
	rendezvous("done");
	return 0;
}
