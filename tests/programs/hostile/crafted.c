/*
 * usage: hostile FILE… Maps the second page of each file as code, says "ready", and allocates a block through the code at
 * the start of each, which calls the function that it is passed.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include "../handshake.h"
#include "../keep.h"

typedef void caller(void (*)(void));

NOINLINE static void allocate(void)
{
	LEAK();
}

int main(int argc, char **argv)
{
	caller *callers[64];

	if (argc > 64)
		return 1;
	for (int file = 1; file < argc; file++) {
		int fd = open(argv[file], O_RDONLY);
		void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 4096);

		if (code == MAP_FAILED)
			return 2;
		close(fd);
		callers[file] = (caller *)code;
	}
	rendezvous("ready");
	for (int file = 1; file < argc; file++)
		callers[file](allocate);
	rendezvous("done");
	return 0;
}
