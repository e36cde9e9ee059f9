/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Loads CPython's library, argument 1, and makes it allocate, as a plug-in. Says "ready" before, "done" after. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return found;
}

int main(int argc, char **argv)
{
	void (*initialize)(int);
	int (*run)(const char *, void *);
	void *library;

	puts("ready");
	fflush(stdout);
	getchar();
	if (argc != 2 || !(library = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL))) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	*(void **)&initialize = symbol(library, "Py_InitializeEx");
	*(void **)&run = symbol(library, "PyRun_SimpleStringFlags");
	initialize(0);
	/* By then, a tracer has noticed the library. */
	if (run("import time\ntime.sleep(0.5)\ndef plug_in():\n return bytearray(5_000_000)\nkept = plug_in()\n", NULL))
		return 1;
	puts("done");
	fflush(stdout);
	getchar();
	return 0;
}
