/*
 * Resident memory that behaves as the first argument says:
 *
 *   steady   grows by 64 KiB each 50 ms: 75 MiB a minute
 *   noise    has 0 to 8 MiB, another size at random every 20 ms
 *   step     grows once, by 32 MiB, after the number of milliseconds in the second argument
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "../handshake.h"

#define MOST (8 << 20)

static struct timespec due;

/* Waits until some milliseconds after the previous deadline, so that delays do not add up. */
static void pace(long milliseconds)
{
	due.tv_nsec += milliseconds % 1000 * 1000000;
	due.tv_sec += milliseconds / 1000 + due.tv_nsec / 1000000000;
	due.tv_nsec %= 1000000000;
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
}

static void *touched(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		exit(1);
	return memset(memory, 1, size);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	unsigned state = 1;

	clock_gettime(CLOCK_MONOTONIC, &due);
	say("ready");
	if (!strcmp(mode, "step")) {
		pace(argc > 2 ? atol(argv[2]) : 0);
		touched(32 << 20);
		for (;;)
			pace(1000);
	}
	if (!strcmp(mode, "noise")) {
		for (;;) {
			size_t size;

			state = state * 1103515245 + 12345;
			size = ((state >> 8) % MOST | 4095) + 1;
			void *memory = touched(size);

			pace(20);
			munmap(memory, size);
		}
	}
	for (;;) {
		pace(50);
		touched(64 << 10);
	}
}
