/*
 * Runs short of memory: allocates by each function until it fails, goes on with the memory that it has, and counts what
 * succeeds and what fails. Its limit leaves room for half of the block that it does not get: a page more or less of
 * anything else changes no number.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include "rounds.h"

#define MIB (1UL << 20)
#define BLOCKS 64
#define NOINLINE __attribute__((noipa))

static void *blocks[2 * BLOCKS];

static unsigned long address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lu", &pages) != 1)
		exit(1);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE);
}

static void limit(void)
{
	unsigned long most = address_space() + BLOCKS * MIB + MIB / 2;
	struct rlimit limit = { most, most };

	if (setrlimit(RLIMIT_AS, &limit))
		exit(1);
}

/* Each large block is a separate mapping. */
NOINLINE static unsigned take_all(void)
{
	unsigned count = 0;

	while (count < 2 * BLOCKS && (blocks[count] = malloc(MIB - 64)) != NULL) {
		memset(blocks[count], count, 100);
		count++;
	}
	return count;
}

NOINLINE static unsigned give_back(unsigned from, unsigned count)
{
	unsigned sum = 0;

	for (unsigned at = from; at < count; at++) {
		sum += *(unsigned char *)blocks[at];
		free(blocks[at]);
	}
	return sum;
}

/* Returns how many of these calls fail: all of them, with the memory that is left. */
NOINLINE static unsigned try_each(void)
{
	void *block = NULL, *volatile pages;
	unsigned failed = 0;

	failed += !calloc(4, MIB);
	failed += posix_memalign(&block, 4096, 2 * MIB) == ENOMEM;
	failed += !aligned_alloc(64, 2 * MIB);
	failed += !memalign(4096, 2 * MIB);
	failed += !valloc(2 * MIB);
	failed += !reallocarray(NULL, 1000, 5000);
	pages = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	failed += pages == MAP_FAILED;
	return failed;
}

/* A block that cannot become larger stays as it is. */
NOINLINE static unsigned grow(unsigned at)
{
	void *larger = realloc(blocks[at], 3 * MIB);

	if (larger)
		return 1000;
	return *(unsigned char *)blocks[at];
}

NOINLINE static unsigned small_ones(unsigned round)
{
	unsigned sum = 0;

	for (unsigned number = 0; number < 200; number++) {
		char *text = NULL;

		if (asprintf(&text, "%u-%u", round, number) < 0)
			exit(1);
		sum += strlen(text);
		free(text);
	}
	return sum;
}

int main(int argc, char **argv)
{
	struct rounds rounds = rounds_of(argv);

	(void)argc;
	setvbuf(stdout, NULL, _IOLBF, 1024);
	mallopt(M_MMAP_THRESHOLD, MIB / 2);
	mallopt(M_TRIM_THRESHOLD, 64 * MIB);
	mallopt(M_TOP_PAD, MIB / 8);
	free(malloc(1000));
	limit();
	while (goes_on(&rounds)) {
		unsigned count = take_all();

		add(&rounds, count);
		add(&rounds, try_each());
		add(&rounds, grow(count - 1));
		add(&rounds, give_back(count / 2, count));
		add(&rounds, small_ones(rounds.done % 50));
		add(&rounds, give_back(0, count / 2));
		end_round(&rounds);
	}
	return DONE;
}
