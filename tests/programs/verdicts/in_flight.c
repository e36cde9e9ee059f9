/*
 * Blocks whose only pointers are in the kernel: in requests under way, or in unread bytes that it wrote to itself.
 *
 * usage: in_flight PLACE BLOCKS LOST
 *
 * PLACE: `io_uring`, `aio`, `pipe`, `socket`, `queue` or `signal`. The kernel has pointers to BLOCKS blocks there; if
 * that is 0, the place was used and is empty. LOST more blocks are leaked before.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "../handshake.h"

#define NOINLINE __attribute__((noinline))

enum { SIZE = 48, RING = 8, MOST = 64 };

NOINLINE static void *in_flight(void)
{
	return malloc(SIZE);
}

NOINLINE static void *leaked(void)
{
	return malloc(SIZE);
}

/* Writes a pointer that is nowhere else: in one piece, as a part of it would not be a pointer. */
static void put_back(int file, uint64_t word)
{
	if (write(file, &word, sizeof(word)) != sizeof(word))
		abort();
}

static void take(int file)
{
	uint64_t word;

	if (read(file, &word, sizeof(word)) != sizeof(word))
		abort();
}

static int never[2];

/* Polls a pipe that is never written to or, if BLOCKS is 0, completes requests that do nothing. */
NOINLINE static void by_io_uring(int blocks)
{
	struct io_uring_params parameters = {};
	int ring = syscall(SYS_io_uring_setup, RING, &parameters);
	size_t entries = parameters.sq_entries * sizeof(struct io_uring_sqe);
	char *rings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqes = mmap(NULL, entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	unsigned *tail = (unsigned *)(rings + parameters.sq_off.tail), *array = (unsigned *)(rings + parameters.sq_off.array);
	int done = blocks ? 0 : 3;

	if (ring < 0 || rings == MAP_FAILED || sqes == MAP_FAILED)
		abort();
	for (int request = 0; request < blocks + done; request++) {
		struct io_uring_sqe *sqe = &sqes[*tail % RING];

		memset(sqe, 0, sizeof(*sqe));
		sqe->opcode = done ? IORING_OP_NOP : IORING_OP_POLL_ADD;
		sqe->fd = done ? -1 : never[0];
		sqe->poll32_events = done ? 0 : POLLIN;
		sqe->user_data = done ? 1 : (uintptr_t)in_flight();
		array[*tail % RING] = *tail % RING;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		if (syscall(SYS_io_uring_enter, ring, 1, done ? 1 : 0, done ? IORING_ENTER_GETEVENTS : 0, NULL, 0) != 1)
			abort();
		/* As if many later requests had overwritten the entry. */
		memset(sqe, 0, sizeof(*sqe));
	}
}

NOINLINE static void by_aio(int blocks)
{
	aio_context_t context = 0;
	int done = blocks ? 0 : 3;

	if (syscall(SYS_io_setup, MOST, &context))
		abort();
	for (int request = 0; request < blocks + done; request++) {
		struct iocb iocb = { .aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = never[done ? 1 : 0],
				     .aio_buf = done ? POLLOUT : POLLIN };
		struct iocb *list = &iocb;
		struct io_event event;

		iocb.aio_data = done ? 1 : (uintptr_t)in_flight();
		if (syscall(SYS_io_submit, context, 1, &list) != 1)
			abort();
		memset(&iocb, 0, sizeof(iocb));
		if (done && syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1)
			abort();
	}
}

NOINLINE static void by_pair(int blocks, const int *ends)
{
	put_back(ends[1], 1);
	take(ends[0]);
	for (int block = 0; block < blocks; block++)
		put_back(ends[1], (uintptr_t)in_flight());
}

NOINLINE static void by_queue(int blocks)
{
	struct mq_attr attributes = { .mq_maxmsg = 10, .mq_msgsize = sizeof(void *) };
	char name[40];
	mqd_t queue;

	snprintf(name, sizeof(name), "/memleak-in-flight-%d", getpid());
	queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attributes);
	if (queue < 0 || mq_unlink(name))
		abort();
	for (int block = 0; block < blocks; block++) {
		void *pointer = in_flight();

		if (mq_send(queue, (char *)&pointer, sizeof(pointer), 0))
			abort();
	}
}

NOINLINE static void by_signal(int blocks)
{
	for (int block = 0; block < blocks; block++)
		if (sigqueue(getpid(), SIGRTMIN + 2, (union sigval){ .sival_ptr = in_flight() }))
			abort();
}

/* Overwrites data that calls have left on the stack. */
NOINLINE static void wipe(void)
{
	volatile char room[1 << 14];

	for (size_t at = 0; at < sizeof(room); at++)
		room[at] = 0;
}

int main(int argc, char **argv)
{
	const char *place = argv[1];
	int blocks = atoi(argv[2]), lost = atoi(argv[3]), ends[2];
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGRTMIN + 2);
	if (argc < 4 || sigprocmask(SIG_BLOCK, &blocked, NULL) || pipe(never))
		return 2;
	rendezvous("ready");
	while (lost-- > 0)
		*(volatile char *)leaked() = 1;
	if (strcmp(place, "io_uring") == 0)
		by_io_uring(blocks);
	else if (strcmp(place, "aio") == 0)
		by_aio(blocks);
	else if (strcmp(place, "pipe") == 0 && pipe(ends) == 0)
		by_pair(blocks, ends);
	else if (strcmp(place, "socket") == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0)
		by_pair(blocks, ends);
	else if (strcmp(place, "queue") == 0)
		by_queue(blocks);
	else if (strcmp(place, "signal") == 0)
		by_signal(blocks);
	else
		return 2;
	wipe();
	rendezvous("done");
	return 0;
}
