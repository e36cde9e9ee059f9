/* A process with many objects: loads those named on standard input until it has as many as asked for, says how many
 * there are, and allocates now and then. Objects that cannot be loaded are passed over. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int count(struct dl_phdr_info *info, size_t size, void *objects)
{
	(void)info;
	(void)size;
	++*(int *)objects;
	return 0;
}

static int objects(void)
{
	int objects = 0;

	dl_iterate_phdr(count, &objects);
	return objects;
}

int main(int argc, char **argv)
{
	char path[4096];
	int wanted = argc > 1 ? atoi(argv[1]) : 0;

	while (objects() < wanted && fgets(path, sizeof(path), stdin)) {
		path[strcspn(path, "\n")] = 0;
		dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	}
	printf("%d\n", objects());
	fflush(stdout);
	for (;;) {
		/* Volatile, or the compiler drops both calls. */
		void *volatile block = malloc(100);

		free(block);
		usleep(1000);
	}
}
