/* Memory of each kind, touched: blocks from before the attach and after it, mappings, a file, stacks of threads. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include "../handshake.h"
#include "../keep.h"

#define MIB (1UL << 20)
#define THREADS 8

static pthread_barrier_t all;

static NOINLINE void *touched(void *at, size_t bytes)
{
	memset(at, 1, bytes);
	return at;
}

/* Touches a MiB of its stack, then waits forever. */
static NOINLINE void *wait_in_thread(void *unused)
{
	volatile char room[MIB];

	touched((char *)room, MIB);
	pthread_barrier_wait(&all);
	for (;;)
		pause();
	return NULL;
}

static void *mapped(size_t bytes, int protection, int flags, int file)
{
	void *got = mmap(NULL, bytes, protection, flags, file, 0);

	if (got == MAP_FAILED)
		_exit(1);
	return got;
}

int main(int count, char **arguments)
{
	volatile char sum = 0;
	pthread_t thread;
	char *text;
	int file;

	if (count != 2)
		return 1;
	pthread_barrier_init(&all, NULL, THREADS + 1);
	/* Below the size from which malloc maps each block separately. */
	for (int block = 0; block < 64; block++)
		kept = touched(malloc(64 * 1024), 64 * 1024);
	rendezvous("ready");
	kept = touched(malloc(40 * MIB), 40 * MIB);
	for (int block = 0; block < 24 * 16; block++)
		kept = touched(malloc(64 * 1024), 64 * 1024);
	/* Never touched. */
	kept = malloc(100 * MIB);
	touched(mapped(32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 32 * MIB);
	touched(mapped(8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1), 8 * MIB);
	file = open(arguments[1], O_RDONLY);
	text = mapped(16 * MIB, PROT_READ, MAP_PRIVATE, file);
	for (size_t at = 0; at < 16 * MIB; at += 4096)
		sum += text[at];
	for (int number = 0; number < THREADS; number++)
		if (pthread_create(&thread, NULL, wait_in_thread, NULL))
			return 2;
	pthread_barrier_wait(&all);
	rendezvous("done");
	return 0;
}
