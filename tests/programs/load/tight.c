/*
 * THREADS threads allocate and free without end, one block at a time each. For each line that it reads, it prints how
 * many times they have done so. It first prints the addresses of malloc and free.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include "../handshake.h"
#include "../keep.h"

static atomic_ulong rounds;

NOINLINE static void allocate_and_free(size_t size)
{
	void *volatile block = malloc(size);

	free(block);
}

NOINLINE static void *thread_main(void *argument)
{
	for (size_t round = 0;; round++) {
		allocate_and_free(1 + round % 200);
		atomic_fetch_add_explicit(&rounds, 1, memory_order_relaxed);
	}
	return argument;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	char line[64];

	for (int number = 0; number < threads; number++) {
		pthread_t thread;

		pthread_create(&thread, NULL, thread_main, NULL);
	}
	snprintf(line, sizeof(line), "%" PRIuPTR " %" PRIuPTR, (uintptr_t)malloc, (uintptr_t)free);
	say(line);
	for (;;) {
		await_line();
		snprintf(line, sizeof(line), "%lu", atomic_load(&rounds));
		say(line);
	}
}
