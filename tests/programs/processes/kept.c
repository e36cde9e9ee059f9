/* Makes the kernel keep known words: data of an epoll, the value of a timer's signal, and words that cannot be read, in
 * a pipe and with a pending signal. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include "../handshake.h"

int main(void)
{
	int pipe_ends[2], epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0x5a5a0003deadbee1 };
	struct sigevent notice = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
	unsigned long secret = 0x5a5a0003deadbee3;
	sigset_t blocked;
	timer_t timer;

	notice.sigev_value.sival_ptr = (void *)0x5a5a0003deadbee2;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	if (epoll < 0 || pipe(pipe_ends) || epoll_ctl(epoll, EPOLL_CTL_ADD, pipe_ends[0], &event) ||
	    timer_create(CLOCK_MONOTONIC, &notice, &timer) || sigprocmask(SIG_BLOCK, &blocked, NULL) ||
	    sigqueue(getpid(), SIGUSR1, (union sigval){ .sival_ptr = (void *)secret }) ||
	    write(pipe_ends[1], &secret, sizeof(secret)) != sizeof(secret))
		return 1;
	rendezvous("ready");
	return 0;
}
