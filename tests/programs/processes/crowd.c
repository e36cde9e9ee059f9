/* Starts argument 1 processes with the name in argument 2, each of which executes this file. When told, each leaks 1 to
 * 7 blocks of 24 bytes, in turn, and stays; when told again, all are killed. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

#define MAX 4096

static pid_t members[MAX];

NOINLINE static void leak(void)
{
	kept = malloc(24);
}

static void hear(int from)
{
	char byte;

	if (read(from, &byte, 1) != 1)
		_exit(1);
}

static void tell(int to)
{
	if (write(to, "", 1) != 1)
		_exit(1);
}

static int member(const char *name, int number, int go, int back)
{
	prctl(PR_SET_NAME, name);
	tell(back);
	hear(go);
	for (int block = 0; block < number % 7 + 1; block++)
		leak();
	tell(back);
	pause();
	return 0;
}

static pid_t start(char **argv, int number, int go, int back)
{
	char texts[3][16];
	pid_t child = fork();

	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(texts[0], sizeof(texts[0]), "%d", number);
	snprintf(texts[1], sizeof(texts[1]), "%d", go);
	snprintf(texts[2], sizeof(texts[2]), "%d", back);
	execl("/proc/self/exe", argv[0], argv[1], argv[2], texts[0], texts[1], texts[2], NULL);
	_exit(1);
}

int main(int argc, char **argv)
{
	int go[2], back[2], count = atoi(argv[1]);

	if (argc > 5)
		return member(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
	if (count > MAX || pipe(go) || pipe(back))
		return 1;
	for (int number = 0; number < count; number++)
		members[number] = start(argv, number, go[0], back[1]);
	for (int number = 0; number < count; number++)
		hear(back[0]);
	rendezvous("ready");
	for (int number = 0; number < count; number++)
		tell(go[1]);
	for (int number = 0; number < count; number++)
		hear(back[0]);
	rendezvous("done");
	for (int number = 0; number < count; number++)
		kill(members[number], SIGKILL);
	while (wait(NULL) > 0) {
	}
	rendezvous("ended");
	return 0;
}
