/*
 * Answers commands by nanoseconds of CPU time per pair of malloc and free, of all threads together:
 *   small THREADS PAIRS     64 bytes, freed at once
 *   mixed THREADS PAIRS     16 to 4096 bytes, one of 64 live blocks replaced by each
 *   server THREADS PAIRS    16 to 256 bytes, one of 10 million live blocks replaced by each: every free is a cache miss
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LIVE 10000000

static void *server_blocks[LIVE];
static long pairs;

static uint64_t next(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random;
}

/* Keeps the compiler from leaving out a pair. */
static void use(void *block)
{
	__asm__ volatile("" : : "r"(block) : "memory");
}

static void *small(void *argument)
{
	(void)argument;
	for (long pair = 0; pair < pairs; pair++) {
		void *block = malloc(64);

		use(block);
		free(block);
	}
	return NULL;
}

static void *mixed(void *argument)
{
	uint64_t random = (uintptr_t)argument * 0x9e3779b97f4a7c15 + 1;
	void *blocks[64] = { 0 };

	for (long pair = 0; pair < pairs; pair++) {
		uint64_t word = next(&random);

		free(blocks[word % 64]);
		blocks[word % 64] = malloc(16 + (word >> 8) % 4081);
		use(blocks[word % 64]);
	}
	for (int at = 0; at < 64; at++)
		free(blocks[at]);
	return NULL;
}

/* Replaces blocks of this thread's half; two threads at most. */
static void *server(void *argument)
{
	uint64_t random = (uintptr_t)argument * 0x9e3779b97f4a7c15 + 1;
	void **blocks = server_blocks + ((uintptr_t)argument & 1) * (LIVE / 2);

	for (long pair = 0; pair < pairs; pair++) {
		uint64_t word = next(&random);
		void **place = &blocks[word % (LIVE / 2)];

		free(*place);
		*place = malloc(16 + (word >> 32) % 241);
		*(uint64_t *)*place = word;
	}
	return NULL;
}

static double cpu_nanoseconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(void)
{
	char name[16];
	long threads;

	while (scanf("%15s %ld %ld", name, &threads, &pairs) == 3) {
		void *(*work)(void *) = !strcmp(name, "small") ? small : !strcmp(name, "mixed") ? mixed : server;
		pthread_t handles[16];
		double before;

		if (work == server && !server_blocks[0])
			for (int at = 0; at < LIVE; at++)
				server_blocks[at] = malloc(16 + at % 241);
		before = cpu_nanoseconds();
		for (long thread = 0; thread < threads && thread < 16; thread++)
			pthread_create(&handles[thread], NULL, work, (void *)(uintptr_t)(thread + 1));
		for (long thread = 0; thread < threads && thread < 16; thread++)
			pthread_join(handles[thread], NULL);
		printf("%.4f\n", (cpu_nanoseconds() - before) / pairs / threads);
		fflush(stdout);
	}
	return 0;
}
