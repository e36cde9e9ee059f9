/*
 * Makes the kernel allocate things that no other process makes it allocate: messages of a given size, record locks, and
 * pages of an anonymous file. Each line that it reads is a step, which it answers by "done".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <unistd.h>

#include "../handshake.h"

enum { QUEUES = 10, MESSAGES = 12, MESSAGE_BYTES = 1001, LOCKS = 150, PAGES = 64 };

struct message {
	long type;
	char text[MESSAGE_BYTES];
};

static int queues[QUEUES];

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void send_messages(void)
{
	struct message message = { .type = 1 };

	for (int i = 0; i < QUEUES; i++) {
		queues[i] = msgget(IPC_PRIVATE, 0600);
		check(queues[i] >= 0, "msgget");
		for (int j = 0; j < MESSAGES; j++)
			check(msgsnd(queues[i], &message, MESSAGE_BYTES, 0) == 0, "msgsnd");
	}
}

static void take_messages(void)
{
	struct message message;

	for (int i = 0; i < QUEUES; i++) {
		for (int j = 0; j < MESSAGES; j++)
			check(msgrcv(queues[i], &message, MESSAGE_BYTES, 0, 0) == MESSAGE_BYTES, "msgrcv");
		check(msgctl(queues[i], IPC_RMID, NULL) == 0, "msgctl");
	}
}

/* Locks bytes that are not adjacent, so that the locks are not merged. */
static void set_locks(int file, short type)
{
	for (int i = 0; i < LOCKS; i++) {
		struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1 };

		check(fcntl(file, F_SETLK, &lock) == 0, "fcntl");
	}
}

int main(void)
{
	int file = memfd_create("kernel_user", 0);

	check(file >= 0, "memfd_create");
	await_line();
	send_messages();
	set_locks(file, F_WRLCK);
	check(fallocate(file, 0, 0, PAGES * sysconf(_SC_PAGESIZE)) == 0, "fallocate");
	say("done");
	await_line();
	take_messages();
	set_locks(file, F_UNLCK);
	check(ftruncate(file, 0) == 0, "ftruncate");
	close(file);
	say("done");
	await_line();
	return 0;
}
