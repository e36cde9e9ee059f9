/*
 * Confines itself by seccomp, as argument 1 says, once it is ready, and then leaks 10 blocks by each function. Other
 * system calls kill it, or fail: `strict` and `kills` (all but read, write and exit), `refuses` (as containers do).
 */
#define _GNU_SOURCE
#include "../handshake.h"
#include "../keep.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOWED(call, more) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, more, 0)

static void confine(const char *how)
{
	int kills = !strcmp(how, "kills");
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOWED(read, 4),
		ALLOWED(write, 3),
		ALLOWED(exit, 2),
		ALLOWED(exit_group, 1),
		BPF_STMT(BPF_RET | BPF_K, kills ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };
	int failed;

	if (!strcmp(how, "strict"))
		failed = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
	else
		failed = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
	if (failed)
		_exit(2);
}

/* For --alloc. */
NOINLINE void *own_allocation(size_t size)
{
	static char pool[4096];
	static size_t used;

	used += size;
	return pool + used - size;
}

NOINLINE static void leak(void)
{
	kept = malloc(24);
	kept = calloc(2, 24);
	kept = realloc(NULL, 24);
	kept = aligned_alloc(16, 24);
	kept = own_allocation(24);
	kept = malloc(24);
	free(kept);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 1;
	/* Makes the allocator get its memory from the kernel before the process is confined. */
	free(malloc(64 << 10));
	leak();
	rendezvous("ready");
	confine(argv[1]);
	rendezvous("confined");
	for (int round = 0; round < 10; round++)
		leak();
	rendezvous("done");
	for (int round = 0; round < 10; round++)
		leak();
	/* exit() makes another system call. */
	syscall(SYS_exit, 0);
	return 1;
}
