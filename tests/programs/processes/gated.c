/*
 * Carries out its arguments, one after another:
 *
 *   leak, known    keeps 10 blocks of 48 B, 5 of 100 B
 *   grow, shrink   keeps 4 KiB more every 5 ms, until a line comes; frees all of that
 *   catch          says which of some signals it ignores; waits for one of the others, and for a line; says how often it came
 *   NUMBER         ends with this status
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../handshake.h"
#include "../keep.h"

struct block {
	struct block *next;
	char rest[4096 - sizeof(struct block *)];
};

static struct block *volatile blocks;
static volatile sig_atomic_t last, count;

NOINLINE static void leak(void)
{
	for (int i = 0; i < 10; i++)
		kept = malloc(48);
}

NOINLINE static void known(void)
{
	for (int i = 0; i < 5; i++)
		kept = malloc(100);
}

NOINLINE static void grow(void)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	while (poll(&input, 1, 5) == 0) {
		struct block *block = malloc(sizeof(*block));

		block->next = blocks;
		blocks = block;
	}
	await_line();
}

NOINLINE static void shrink(void)
{
	while (blocks) {
		struct block *block = blocks;

		blocks = block->next;
		free(block);
	}
}

static void on_signal(int number)
{
	last = number;
	count++;
}

static void catch(void)
{
	static const int numbers[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct sigaction before;
	char line[100] = "ignored:";

	count = 0;
	for (int i = 0; i < 6; i++) {
		sigaction(numbers[i], NULL, &before);
		if (before.sa_handler == SIG_IGN)
			snprintf(line + strlen(line), 8, " %d", numbers[i]);
		else
			sigaction(numbers[i], &action, NULL);
	}
	say(line);
	while (!count)
		usleep(1000);
	say("caught");
	await_line();
	snprintf(line, sizeof(line), "signal %d, times %d", (int)last, (int)count);
	say(line);
}

int main(int argc, char **argv)
{
	int status = 0;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "leak") == 0)
			leak();
		else if (strcmp(argv[i], "known") == 0)
			known();
		else if (strcmp(argv[i], "grow") == 0)
			grow();
		else if (strcmp(argv[i], "shrink") == 0)
			shrink();
		else if (strcmp(argv[i], "catch") == 0)
			catch();
		else
			status = atoi(argv[i]);
	}
	return status;
}
