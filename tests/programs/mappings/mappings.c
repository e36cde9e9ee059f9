/* Mapping calls: one function for each effect that they can have. Writes down for its test which mappings remain. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../handshake.h"
#include "../keep.h"

#define PAGE ((unsigned long)sysconf(_SC_PAGESIZE))
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

/* Defines a function in which `body` is no tail call. */
#define SITE(name, body)                     \
	static NOINLINE char *name(char *at) \
	{                                    \
		char *volatile got = at;     \
		body;                        \
		return got;                  \
	}

static char *checked(void *got)
{
	if (got == MAP_FAILED)
		_exit(3);
	return got;
}

static void must_fail(void *got)
{
	if (got != MAP_FAILED)
		_exit(4);
}

#define MAP(bytes, flags) checked(mmap(at, bytes, RW, PRIVATE | (flags), -1, 0))

SITE(whole, got = MAP(4 * PAGE, 0))
SITE(rounded, got = MAP(4 * PAGE + 1, 0))
SITE(unmapped, got = MAP(4 * PAGE, 0))
SITE(head_cut, got = MAP(10 * PAGE, 0))
SITE(tail_cut, got = MAP(10 * PAGE, 0))
SITE(middle_cut, got = MAP(10 * PAGE, 0))
SITE(cut_to_pieces_and_gone, got = MAP(3 * PAGE, 0))
SITE(span_low, got = MAP(4 * PAGE, MAP_FIXED))
SITE(span_middle, got = MAP(4 * PAGE, MAP_FIXED))
SITE(span_high, got = MAP(4 * PAGE, MAP_FIXED))
SITE(room, got = checked(mmap(at, 64 * PAGE, PROT_NONE, PRIVATE, -1, 0)))
SITE(covered, got = MAP(8 * PAGE, 0))
SITE(cover, got = MAP(2 * PAGE, MAP_FIXED))
SITE(not_replaced, got = MAP(4 * PAGE, 0))
SITE(refused_to_replace, must_fail(mmap(at, PAGE, RW, PRIVATE | MAP_FIXED_NOREPLACE, -1, 0)))
SITE(bad_length, must_fail(mmap(NULL, 0, RW, PRIVATE, -1, 0)))
SITE(too_large, must_fail(mmap(NULL, 1UL << 60, RW, PRIVATE, -1, 0)))
SITE(grow_old, got = MAP(4 * PAGE, MAP_FIXED))
SITE(grow, got = checked(mremap(at, 4 * PAGE, 6 * PAGE, 0)))
SITE(shrink_old, got = MAP(8 * PAGE, 0))
SITE(shrink, got = checked(mremap(at, 8 * PAGE, 3 * PAGE, 0)))
SITE(move_old, got = MAP(4 * PAGE, 0))
SITE(move_part, got = checked(mremap(at, 2 * PAGE, 5 * PAGE, MREMAP_MAYMOVE)))
SITE(fixed_old, got = MAP(4 * PAGE, 0))
SITE(fixed_under, got = MAP(8 * PAGE, 0))
SITE(stay_old, got = MAP(4 * PAGE, 0))
SITE(stay, got = checked(mremap(at, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL)))
SITE(duplicated, got = checked(mmap(at, 4 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0)))
SITE(duplicate, got = checked(mremap(at, 0, 4 * PAGE, MREMAP_MAYMOVE)))
SITE(stuck, got = MAP(4 * PAGE, MAP_FIXED))
SITE(stopper, got = MAP(PAGE, MAP_FIXED))
SITE(failing_mremap, must_fail(mremap(at, 4 * PAGE, 9 * PAGE, 0)))
SITE(kept_by_failure, got = MAP(4 * PAGE, 0))
SITE(failing_munmap, if (!munmap(at, 0) || !munmap(at + 1, PAGE)) _exit(5))
SITE(huge_reservation, got = checked(mmap(at, 2UL << 40, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0)))
SITE(growing_break, if (brk(at)) _exit(6))
SITE(growing_break_more, if (brk(at)) _exit(6))
SITE(shrinking_break, if (brk(at)) _exit(6))
SITE(file, int fd = open("/proc/self/exe", O_RDONLY);
     got = checked(mmap(at, PAGE, PROT_READ, MAP_PRIVATE, fd, 0)); close(fd))
SITE(from_malloc, got = malloc(8UL << 20))

static NOINLINE char *fixed(char *from, char *to)
{
	char *volatile got = checked(mremap(from, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to));

	return got;
}

static void *wait_in_thread(void *barrier)
{
	pthread_barrier_wait(barrier);
	await_line();
	return NULL;
}

static NOINLINE void thread(pthread_barrier_t *barrier)
{
	pthread_t made;

	pthread_barrier_init(barrier, NULL, 2);
	if (pthread_create(&made, NULL, wait_in_thread, barrier))
		_exit(7);
	pthread_barrier_wait(barrier);
}

static void drop(char *from, unsigned long bytes)
{
	if (munmap(from, bytes))
		_exit(8);
}

static void unmap_parts(char *place)
{
	char *got;

	whole(NULL);
	rounded(NULL);
	drop(unmapped(NULL), 4 * PAGE);
	drop(head_cut(NULL), 3 * PAGE);
	drop(tail_cut(NULL) + 7 * PAGE, 3 * PAGE - 1);
	drop(middle_cut(NULL) + 2 * PAGE, 5 * PAGE);
	got = cut_to_pieces_and_gone(NULL);
	drop(got + PAGE, PAGE);
	drop(got, PAGE);
	drop(got + 2 * PAGE, PAGE);
	/* Neighbours: of the first, the first two pages stay, and of the last, the last one. */
	span_low(place);
	span_middle(place + 4 * PAGE);
	span_high(place + 8 * PAGE);
	drop(place + 2 * PAGE, 9 * PAGE);
	got = covered(NULL);
	cover(got + 3 * PAGE);
	refused_to_replace(not_replaced(NULL));
	bad_length(NULL);
	too_large(NULL);
}

static void remap_parts(char *place)
{
	char *got, *to;

	/* Leaves room behind it. */
	drop(place + 20 * PAGE, 10 * PAGE);
	grow(grow_old(place + 20 * PAGE));
	shrink(shrink_old(NULL));
	move_part(move_old(NULL) + PAGE);
	got = fixed_old(NULL);
	to = fixed_under(NULL);
	fixed(got, to + 2 * PAGE);
	stay(stay_old(NULL));
	duplicate(duplicated(NULL));
	stuck(place + 40 * PAGE);
	stopper(place + 44 * PAGE);
	failing_mremap(place + 40 * PAGE);
	failing_munmap(kept_by_failure(NULL));
}

static void move_break(void)
{
	char *now = (char *)syscall(SYS_brk, 0);

	growing_break(now + 5 * PAGE);
	growing_break_more(now + 12 * PAGE);
	shrinking_break(now + 9 * PAGE);
}

int main(void)
{
	static pthread_barrier_t barrier;
	char *before = checked(mmap(NULL, 4 * PAGE, RW, PRIVATE, -1, 0));
	char *place;

	rendezvous("ready");
	place = room(NULL);
	unmap_parts(place);
	remap_parts(place);
	move_break();
	huge_reservation(NULL);
	file(NULL);
	kept = from_malloc(NULL);
	thread(&barrier);
	/* The mapping from before the attach. */
	drop(before, 4 * PAGE);
	rendezvous("done");
	await_line();
	return 0;
}
