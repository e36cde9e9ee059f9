/*
 * Code that comes and goes. With -DLIBRARY, it is the library: it calls the function that it is passed.
 *
 * usage: storm LIBRARY ROUNDS FILES. After "ready", in threads: ROUNDS times, the library is loaded and unloaded, and code
 * is written to new memory and unmapped; FILES times, a new copy of the library is loaded. All of this code
 * calls `allocate`. Prints how many blocks it allocated.
 */
#define _GNU_SOURCE
#include "../handshake.h"
#include "../keep.h"

#ifdef LIBRARY
void call_back(void (*function)(void))
{
	function();
	*(volatile char *)&function = 0;
}
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

typedef void caller(void (*)(void));

/* push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret */
static const unsigned char CODE[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};

static const char *library;
static int rounds, files;
static atomic_long blocks;

NOINLINE static void allocate(void)
{
	void *volatile block = malloc(32);

	free(block);
	atomic_fetch_add(&blocks, 1);
}

NOINLINE static void load(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	caller *call = handle ? (caller *)dlsym(handle, "call_back") : NULL;

	if (!call)
		_exit(3);
	call(allocate);
	dlclose(handle);
}

NOINLINE static void *call_library(void *unused)
{
	for (int round = 0; round < rounds; round++)
		load(library);
	return unused;
}

NOINLINE static void *call_code(void *unused)
{
	for (int round = 0; round < rounds; round++) {
		void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (page == MAP_FAILED)
			_exit(4);
		memcpy(page, CODE, sizeof(CODE));
		((caller *)page)(allocate);
		munmap(page, 4096);
	}
	return unused;
}

NOINLINE static void *call_file(void *unused)
{
	static char bytes[1 << 20];
	char path[64];
	int from = open(library, O_RDONLY);
	ssize_t size = read(from, bytes, sizeof(bytes));

	for (int file = 0; file < files; file++) {
		int copy = memfd_create("storm", 0);

		if (copy < 0 || write(copy, bytes, size) != size)
			_exit(5);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", copy);
		load(path);
		close(copy);
	}
	return unused;
}

int main(int argc, char **argv)
{
	void *(*const all[])(void *) = {call_library, call_code, call_file, call_library};
	pthread_t threads[4];
	char text[32];

	if (argc < 4)
		return 1;
	library = argv[1];
	rounds = atoi(argv[2]);
	files = atoi(argv[3]);
	rendezvous("ready");
	for (int thread = 0; thread < 4; thread++)
		pthread_create(&threads[thread], NULL, all[thread], NULL);
	for (int thread = 0; thread < 4; thread++)
		pthread_join(threads[thread], NULL);
	snprintf(text, sizeof(text), "%ld", atomic_load(&blocks));
	rendezvous(text);
	return 0;
}
#endif
