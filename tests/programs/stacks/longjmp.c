/*
 * Leaves allocator functions, and frames above them, by longjmp: a signal handler that interrupts calls of malloc
 * at any point jumps out of them, round after round. Afterwards leaks one block that must be seen.
 */
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include "../handshake.h"
#include "../keep.h"

static sigjmp_buf back;
static volatile sig_atomic_t inside;

static void jump(int number)
{
	(void)number;
	if (inside)
		siglongjmp(back, 1);
}

NOINLINE static void after_jumps(void)
{
	LEAK();
}

/* Fails in the allocator without touching its state: a jump out of it breaks nothing. */
NOINLINE static void allocate_for_long(void)
{
	volatile size_t huge = (size_t)1 << 62;

	for (;;)
		kept = malloc(huge);
}

int main(void)
{
	struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};

	/* If left in its first call, glibc's malloc would keep a lock: it creates the thread's cache then. */
	kept = malloc(1);
	free(kept);
	signal(SIGALRM, jump);
	rendezvous("ready");
	for (volatile int round = 0; round < 2000; round++) {
		if (sigsetjmp(back, 1) == 0) {
			inside = 1;
			if (round == 0)
				setitimer(ITIMER_REAL, &often, NULL);
			allocate_for_long();
		}
		inside = 0;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	after_jumps();
	rendezvous("done");
	return 0;
}
