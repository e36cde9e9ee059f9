/* Mappings of a process, of its child, which unmaps its copy of them, and of the program that the child executes. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

#define PAGE ((unsigned long)sysconf(_SC_PAGESIZE))

#define SITE(name, pages)                                                                               \
	static NOINLINE char *name(void)                                                                \
	{                                                                                               \
		char *volatile got = mmap(NULL, (pages) * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, \
					  -1, 0);                                                       \
		return got;                                                                             \
	}

SITE(of_parent, 4)
SITE(of_child, 2)
SITE(of_executed, 37)

int main(int count, char **arguments)
{
	char *mapped;
	pid_t child;

	if (count > 1) {
		of_executed();
		return 0;
	}
	rendezvous("ready");
	mapped = of_parent();
	child = fork();
	if (!child) {
		munmap(mapped, 4 * PAGE);
		of_child();
		execl("/proc/self/exe", arguments[0], "executed", (char *)NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
	rendezvous("done");
	return 0;
}
