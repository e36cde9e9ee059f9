/*
 * Allocates in signal handlers: nested ones, each raised by the one before; and those of a timer, which
 * interrupts code between any two of its instructions. On the thread's stack or, with an argument, on another.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/time.h>
#include "../handshake.h"
#include "../keep.h"

#define TICKS 300

static char other_stack[1 << 16];
static volatile int ticks;
static volatile uint64_t sum;

NOINLINE static int innermost(int number)
{
	LEAK();
	return number + 1;
}

static void on_quit(int number)
{
	sum += innermost(number);
}

static void on_term(int number)
{
	LEAK();
	sum += raise(SIGQUIT) + number;
}

static void on_hangup(int number)
{
	LEAK();
	sum += raise(SIGTERM) + number;
	LEAK();
}

static void on_alarm(int number)
{
	LEAK();
	ticks += number / number;
}

/* A function with a prologue and an epilogue of some length. */
NOINLINE static uint64_t turn(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	volatile uint64_t local[8] = {a, b, c, d};

	for (int at = 0; at < 4; at++)
		local[at + 4] = local[at] * 31 + local[at + 3];
	return local[7] ^ a ^ b;
}

NOINLINE static uint64_t turns(uint64_t from)
{
	return turn(from, from + 1, from + 2, from + 3) + turn(from + 4, from, 1, 2);
}

NOINLINE static void be_interrupted(void)
{
	struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};

	setitimer(ITIMER_REAL, &often, NULL);
	while (ticks < TICKS)
		sum += turns(sum);
	setitimer(ITIMER_REAL, &never, NULL);
}

static void handle(int number, void (*action)(int))
{
	struct sigaction handler = {.sa_handler = action, .sa_flags = SA_ONSTACK};

	sigaction(number, &handler, NULL);
}

int main(int argc, char **argv)
{
	stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof(other_stack)};

	(void)argv;
	if (argc > 1)
		sigaltstack(&stack, NULL);
	handle(SIGHUP, on_hangup);
	handle(SIGTERM, on_term);
	handle(SIGQUIT, on_quit);
	handle(SIGALRM, on_alarm);
	rendezvous("ready");
	sum += raise(SIGHUP);
	be_interrupted();
	rendezvous("done");
	return 0;
}
