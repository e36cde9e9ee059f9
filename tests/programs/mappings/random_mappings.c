/*
 * Random mapping calls on four threads at once: each within separate addresses, or all within the same, and wherever
 * the kernel likes. Arguments: a seed, calls of each thread in a round, rounds, and "own" or "shared". With "told", one
 * thread makes its calls in its window, and prints for each its number, arguments and result, and which pages of the
 * window are mapped afterwards.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../handshake.h"

#define PAGE ((unsigned long)sysconf(_SC_PAGESIZE))
#define THREADS 4
#define WINDOW 64UL
#define LOOSE 32

struct worker {
	uint64_t random;
	char *window;
	/* Mappings that the kernel placed. */
	char *loose[LOOSE];
	unsigned long pages[LOOSE];
};

static unsigned long calls;
static int told;

/* SplitMix64. */
static uint64_t below(struct worker *worker, uint64_t bound)
{
	uint64_t mixed = worker->random += 0x9e3779b97f4a7c15;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return (mixed ^ mixed >> 31) % bound;
}

static void loose(struct worker *worker)
{
	unsigned long slot = below(worker, LOOSE), pages = 1 + below(worker, 8);
	char **at = &worker->loose[slot];

	if (!*at) {
		*at = mmap(NULL, pages * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		worker->pages[slot] = pages;
		if (*at == MAP_FAILED)
			_exit(1);
	} else if (below(worker, 2)) {
		char *got = mremap(*at, worker->pages[slot] * PAGE, pages * PAGE, MREMAP_MAYMOVE);

		if (got == MAP_FAILED)
			_exit(2);
		*at = got;
		worker->pages[slot] = pages;
	} else {
		if (munmap(*at, worker->pages[slot] * PAGE))
			_exit(3);
		*at = NULL;
	}
}

static uint64_t mapped_pages(const struct worker *worker)
{
	unsigned char resident;
	uint64_t pages = 0;

	for (unsigned long page = 0; page < WINDOW; page++)
		if (!mincore(worker->window + page * PAGE, PAGE, &resident))
			pages |= 1UL << page;
	return pages;
}

static void make(struct worker *worker, long number, char *first, unsigned long second, unsigned long third,
		 unsigned long fourth, unsigned long fifth)
{
	long result = syscall(number, first, second, third, fourth, fifth, 0);
	char line[128];

	if (!told)
		return;
	result = result == -1 ? -errno : result;
	snprintf(line, sizeof(line), "%ld %lx %lx %lx %lx %lx %lx %lx", number, (unsigned long)first, second, third,
		 fourth, fifth, (unsigned long)result, (unsigned long)mapped_pages(worker));
	say(line);
}

/* Makes one random call within the window. It may fail, which memleak has to notice, too. */
static void inside(struct worker *worker)
{
	unsigned long from = below(worker, WINDOW), to = below(worker, WINDOW);
	unsigned long pages = below(worker, WINDOW - from + 1), most = below(worker, WINDOW - to + 1);
	char *first = worker->window + from * PAGE, *second = worker->window + to * PAGE;
	int protection = below(worker, 4) ? PROT_READ | PROT_WRITE : PROT_NONE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS, moves = MREMAP_MAYMOVE | MREMAP_FIXED;

	if (pages > 12)
		pages %= 12;
	if (most > 12)
		most %= 12;
	switch (below(worker, 9)) {
	case 0:
	case 1:
		make(worker, SYS_mmap, first, pages * PAGE, protection, flags | MAP_FIXED, -1);
		break;
	case 2:
		make(worker, SYS_mmap, first, pages * PAGE, protection, flags | MAP_FIXED_NOREPLACE, -1);
		break;
	case 3:
	case 4:
		make(worker, SYS_munmap, first, pages * PAGE, 0, 0, 0);
		break;
	case 5:
		make(worker, SYS_mremap, first, pages * PAGE, most * PAGE, moves, (unsigned long)second);
		break;
	case 6:
		/* Shrinks in place, or fails. */
		make(worker, SYS_mremap, first, pages * PAGE, (pages ? below(worker, pages) : 0) * PAGE, 0, 0);
		break;
	case 7:
		if (pages <= WINDOW - to)
			make(worker, SYS_mremap, first, pages * PAGE, pages * PAGE, moves | MREMAP_DONTUNMAP,
			     (unsigned long)second);
		break;
	case 8:
		/* Moves mappings, and the gaps between them. */
		if (pages <= WINDOW - to)
			make(worker, SYS_mremap, first, pages * PAGE, pages * PAGE, moves, (unsigned long)second);
		break;
	}
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	for (unsigned long call = 0; call < calls; call++)
		told || below(worker, 3) ? inside(worker) : loose(worker);
	return NULL;
}

int main(int count, char **arguments)
{
	static struct worker workers[THREADS];
	pthread_t threads[THREADS];

	if (count != 5)
		return 1;
	calls = strtoul(arguments[2], NULL, 0);
	for (unsigned long number = 0; number < THREADS; number++) {
		unsigned long window = strcmp(arguments[4], "shared") ? number : 0;

		workers[number].random = strtoull(arguments[1], NULL, 0) * THREADS + number;
		workers[number].window = (char *)(0x100000000000 + (window << 32));
	}
	if (!strcmp(arguments[4], "told")) {
		told = 1;
		work(&workers[0]);
		return 0;
	}
	rendezvous("ready");
	for (unsigned long rounds = strtoul(arguments[3], NULL, 0); rounds; rounds--) {
		for (int number = 0; number < THREADS; number++)
			if (pthread_create(&threads[number], NULL, work, &workers[number]))
				_exit(4);
		for (int number = 0; number < THREADS; number++)
			pthread_join(threads[number], NULL);
		rendezvous("done");
	}
	return 0;
}
