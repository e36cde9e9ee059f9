/* Grows its resident memory in one function for each way of growing, and says when it has. Frees only where stated. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../handshake.h"

#define NOINLINE __attribute__((noipa))
#define MIB (1UL << 20)

static size_t page;

static void fail(const char *what)
{
	say(what);
	_exit(1);
}

/* Writes to each page. */
NOINLINE static void touch(volatile char *memory, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += page)
		memory[at] = 1;
}

NOINLINE static int look(volatile char *memory, size_t bytes)
{
	int sum = 0;

	for (size_t at = 0; at < bytes; at += page)
		sum += memory[at];
	return sum;
}

static char *map(size_t bytes, int flags, int file)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	/* Only `huge` may have huge pages, whatever the machine's default. */
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	return memory;
}

static char *anonymous(size_t bytes)
{
	return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

/* An allocator that the program defines: blocks of some hundred bytes from arenas. */
static char *arena, *arena_end;

NOINLINE static char *bump(size_t bytes)
{
	if (!arena || arena + bytes > arena_end) {
		arena = anonymous(4 * MIB);
		arena_end = arena + 4 * MIB;
	}
	arena += bytes;
	return arena - bytes;
}

NOINLINE static void arenas(void)
{
	for (int block = 0; block < 16 * 4096; block++)
		memset(bump(256), block, 256);
}

NOINLINE static void program_break(void)
{
	for (int step = 0; step < 64; step++) {
		char *memory = sbrk(64 << 10);

		if (memory == (void *)-1)
			fail("sbrk");
		memset(memory, 1, 64 << 10);
	}
}

NOINLINE static void break_and_back(void)
{
	touch(sbrk(2 * MIB), 2 * MIB);
	sbrk(-(intptr_t)(2 * MIB));
}

NOINLINE static void by_read(void)
{
	char *memory = anonymous(4 * MIB);
	int file = open("/dev/zero", O_RDONLY);

	if (read(file, memory, 4 * MIB) != 4 * MIB)
		fail("read");
	close(file);
}

static char *reused;

NOINLINE static void first_life(void)
{
	reused = anonymous(4 * MIB);
	touch(reused, 4 * MIB);
	madvise(reused, 4 * MIB, MADV_DONTNEED);
}

NOINLINE static void second_life(void)
{
	touch(reused, 2 * MIB);
	touch(reused, 2 * MIB);
}

NOINLINE static void unmapped(void)
{
	char *memory = anonymous(4 * MIB);

	touch(memory, 4 * MIB);
	munmap(memory + MIB, 3 * MIB);
}

NOINLINE static void moved(void)
{
	char *memory = anonymous(2 * MIB), *other = anonymous(8 * MIB);

	touch(memory, 2 * MIB);
	if (mremap(memory, 2 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other + MIB) == MAP_FAILED)
		fail("mremap");
	/* Pages at the old place belong to the stack that touches them next. */
	memory = mmap(memory, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	madvise(memory, 2 * MIB, MADV_NOHUGEPAGE);
	touch(memory, MIB);
}

NOINLINE static void only_read(void)
{
	if (look(anonymous(4 * MIB), 4 * MIB) != 0)
		fail("not zero");
}

NOINLINE static void shared(void)
{
	touch(map(2 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1), 2 * MIB);
}

NOINLINE static void of_file(const char *path)
{
	int file = open(path, O_RDONLY);
	char *memory = map(4 * MIB, MAP_PRIVATE, file);

	look(memory + 2 * MIB, 2 * MIB);
	touch(memory, MIB);
	close(file);
}

NOINLINE static void populated(void)
{
	map(2 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
}

NOINLINE static void huge(size_t huge_bytes)
{
	char *memory = anonymous(5 * huge_bytes);

	memory = (char *)(((uintptr_t)memory + huge_bytes - 1) & -huge_bytes);
	if (madvise(memory, 4 * huge_bytes, MADV_HUGEPAGE))
		return;
	for (int number = 0; number < 4; number++)
		memory[number * huge_bytes + huge_bytes / 3] = 1;
}

/* One page of each of four huge pages, in a mapping of 20 GiB. */
NOINLINE static void huge_in_large(size_t huge_bytes)
{
	size_t bytes = 20UL << 30;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap of 20 GiB");
	if (madvise(memory, bytes, MADV_HUGEPAGE))
		return;
	memory = (char *)(((uintptr_t)memory + huge_bytes - 1) & -huge_bytes);
	for (int number = 0; number < 4; number++)
		memory[((size_t)number << 30) + huge_bytes / 3] = 1;
}

NOINLINE static void *in_thread(void *argument)
{
	touch(anonymous(3 * MIB), 3 * MIB);
	return argument;
}

static void thread(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, in_thread, NULL) || pthread_join(thread, NULL))
		fail("thread");
}

static char *from_before;

/* Arguments: a file of at least 4 MiB, bytes of a huge page. */
int main(int argc, char **argv)
{
	if (argc != 3)
		return 1;
	page = sysconf(_SC_PAGESIZE);
	from_before = anonymous(4 * MIB);
	touch(from_before, 2 * MIB);
	rendezvous("ready");
	arenas();
	program_break();
	break_and_back();
	by_read();
	first_life();
	second_life();
	unmapped();
	moved();
	only_read();
	shared();
	of_file(argv[1]);
	populated();
	huge(strtoul(argv[2], NULL, 10));
	huge_in_large(strtoul(argv[2], NULL, 10));
	thread();
	/* Half of it is resident already. */
	touch(from_before, 4 * MIB);
	rendezvous("done");
	return 0;
}
