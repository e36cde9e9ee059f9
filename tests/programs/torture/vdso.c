/* A timer's signals interrupt clock_gettime, also within the vDSO; the handler allocates. */
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define TICKS 300

static volatile int ticks;

static void on_alarm(int number)
{
	LEAK();
	ticks += number / number;
}

NOINLINE static void read_the_clock(void)
{
	struct timespec now;

	while (ticks < TICKS)
		clock_gettime(CLOCK_MONOTONIC, &now);
}

int main(void)
{
	struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};

	signal(SIGALRM, on_alarm);
	rendezvous("ready");
	setitimer(ITIMER_REAL, &often, NULL);
	read_the_clock();
	setitimer(ITIMER_REAL, &never, NULL);
	rendezvous("done");
	return 0;
}
