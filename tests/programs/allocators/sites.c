/* Allocates by functions that pass blocks on: inline ones of C library headers, and those of a stripped library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "../handshake.h"
#include "../keep.h"

static void *(*allocate)(int size);

NOINLINE static void reads_line(FILE *file)
{
	char *line = NULL;
	size_t size = 0;

	rewind(file);
	if (getline(&line, &size, file) < 0)
		abort();
	kept = line;
}

NOINLINE static void formats(void)
{
	char *text;

	if (asprintf(&text, "%0500d", 7) < 0)
		abort();
	kept = text;
}

NOINLINE static void queries(void)
{
	kept = allocate(700);
}

int main(void)
{
	FILE *file = tmpfile();
	void *library = dlopen("libsqlite3.so.0", RTLD_NOW);
	int (*initialize)(void);

	if (!file || !library)
		abort();
	fputs("a line\n", file);
	initialize = (int (*)(void))dlsym(library, "sqlite3_initialize");
	allocate = (void *(*)(int))dlsym(library, "sqlite3_malloc");
	initialize();
	say("ready");
	await_line();
	reads_line(file);
	formats();
	queries();
	say("done");
	await_line();
	return 0;
}
