/*
 * Prints what a program can notice of how it was started: arguments, signals, whether it is traced or stopped.
 * Its constructor and main allocate. Ends with status 7, or by the signal that its first argument names.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../handshake.h"
#include "../keep.h"

static volatile sig_atomic_t continued, traced;
static void *volatile of_constructor, *volatile of_main;

static void on_continue(int signal)
{
	continued = signal;
}

/* Returns TracerPid of /proc/self/status, without allocating; -1 if it cannot be read. */
static int tracer(void)
{
	static char text[8192];
	int at = open("/proc/self/status", O_RDONLY);
	ssize_t length = read(at, text, sizeof(text) - 1);

	close(at);
	return length > 0 ? atoi(strstr(text, "TracerPid:") + 10) : -1;
}

NOINLINE static void allocate_early(void)
{
	of_constructor = malloc(123);
}

__attribute__((constructor)) static void constructor(void)
{
	signal(SIGCONT, on_continue);
	traced = tracer();
	allocate_early();
}

NOINLINE static void allocate(void)
{
	of_main = malloc(456);
}

int main(int argc, char **argv)
{
	char line[128];

	allocate();
	for (int i = 1; i < argc; i++)
		say(argv[i]);
	snprintf(line, sizeof(line), "traced %d %d, continued %d, user %d", (int)traced, tracer(), (int)continued,
		 (int)getuid());
	say(line);
	await_line();
	if (argc > 1 && strcmp(argv[1], "die") == 0)
		raise(SIGKILL);
	return 7;
}
