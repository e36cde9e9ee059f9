/* A program that tries to harm its tracer. main -> leak_here, whatever else it does. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include "../handshake.h"
#include "../keep.h"

NOINLINE static int leak_here(void)
{
	LEAK();
	return 1;
}

static int file;
static char *whole;
static off_t length;

/* Truncates the file and restores it, as fast as it can. */
static void *cut_and_mend(void *unused)
{
	for (;;) {
		if (ftruncate(file, 0) || pwrite(file, whole, length, 0) != length)
			_exit(2);
	}
	return unused;
}

/* Maps the file as code, and makes a thread truncate and restore it all the time. */
static void cut_for_ever(const char *path)
{
	struct stat facts;
	pthread_t thread;

	file = open(path, O_RDWR);
	if (file < 0 || fstat(file, &facts))
		_exit(3);
	length = facts.st_size;
	whole = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pread(file, whole, length, 0) != length)
		_exit(4);
	if (mmap(NULL, length, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0) == MAP_FAILED)
		_exit(5);
	if (pthread_create(&thread, NULL, cut_and_mend, NULL))
		_exit(6);
}

int main(int count, char **arguments)
{
	volatile int sum = 0;

	if (count > 2 && !strcmp(arguments[1], "cut"))
		cut_for_ever(arguments[2]);
	if (count > 2 && !strcmp(arguments[1], "called"))
		prctl(PR_SET_NAME, arguments[2]);
	if (count > 2 && !strcmp(arguments[1], "acting"))
		setfsuid(atoi(arguments[2]));
	if (count > 1 && !strcmp(arguments[1], "hidden"))
		prctl(PR_SET_DUMPABLE, 0);
	rendezvous("ready");
	sum += leak_here();
	rendezvous("done");
	return 0;
}
