/*
 * Calls every function with blocks so large that each is sampled and stands for itself alone, with special cases.
 * Prints only the lines that tests wait for.
 */
#include "../handshake.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define LARGE ((size_t)4 << 20)

static void *volatile kept;

static void keep(void *block)
{
	kept = block;
}

static void check(int holds, const char *what)
{
	if (!holds) {
		say(what);
		_exit(1);
	}
}

/* One block of each function: LARGE bytes and a distinct number more. */
NOINLINE static void each_function(void)
{
	void *block = NULL;

	keep(malloc(LARGE + 1));
	keep(calloc(2, LARGE / 2 + 1));
	keep(realloc(NULL, LARGE + 3));
	keep(reallocarray(NULL, LARGE / 4 + 1, 4));
	check(posix_memalign(&block, 64, LARGE + 5) == 0, "posix_memalign");
	keep(block);
	keep(aligned_alloc(4096, LARGE + 4096));
	keep(memalign(256, LARGE + 7));
	keep(valloc(LARGE + 8));
#ifdef __GLIBC__
	keep(pvalloc(LARGE + 4096));
#endif
}

/* All blocks are freed, by free and by realloc. */
NOINLINE static void freed(void)
{
	void *block;

	free(malloc(LARGE));
	block = realloc(malloc(LARGE), 2 * LARGE);
	block = realloc(block, LARGE + 100);
	block = realloc(block, 16);
	free(block);
	keep(realloc(malloc(LARGE), 0));
}

/* Failing calls add nothing and remove nothing: 8 MiB stay that realloc was to make impossibly large. */
NOINLINE static void failed(void)
{
	volatile size_t most = PTRDIFF_MAX;
	void *block = malloc(2 * LARGE), *unset = (void *)1;

	errno = 0;
	check(malloc(most) == NULL && errno == ENOMEM, "malloc fails");
	check(calloc(most, 2) == NULL && calloc(SIZE_MAX, SIZE_MAX) == NULL, "calloc fails");
	check(posix_memalign(&unset, 64, most) == ENOMEM, "posix_memalign fails");
	check(aligned_alloc(64, most) == NULL, "aligned_alloc fails");
	/* Sizes that would be negative as signed numbers. */
	check(malloc(most + 2) == NULL && malloc(SIZE_MAX) == NULL, "malloc of a negative size fails");
	/* Not every allocator sets ENOMEM here. */
	check(realloc(block, most) == NULL, "realloc fails");
	check(reallocarray(block, most, 4) == NULL, "reallocarray overflows");
	keep(block);
}

/* NULL is no block, although the counter of its page, modulo 256 MiB, also counts blocks. */
NOINLINE static void nulls(void)
{
	char *space = mmap(NULL, (size_t)1 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *blocks[70];

	check(space != MAP_FAILED, "mmap");
	munmap(space, (size_t)1 << 30);
	for (int number = 0; number < 70; number++)
		blocks[number] = malloc(LARGE);
	for (int number = 0; number < 1000; number++)
		free(NULL);
	for (int number = 0; number < 70; number++)
		free(blocks[number]);
}

/* errno belongs to the caller and must not change. */
NOINLINE static void errors_are_kept(void)
{
	void *block;

	errno = 4711;
	block = malloc(LARGE);
	check(errno == 4711, "malloc changes errno");
	free(block);
	check(errno == 4711, "free changes errno");
}

static volatile sig_atomic_t signals;

/* POSIX does not allow this, but the library must not break it: the interrupted code holds no allocator locks. */
static void handle(int number)
{
	(void)number;
	signals++;
	free(aligned_alloc(4096, LARGE));
}

NOINLINE static void handler(void)
{
	struct sigaction action = { .sa_handler = handle };

	sigaction(SIGUSR1, &action, NULL);
	for (int round = 0; round < 100; round++)
		raise(SIGUSR1);
	check(signals == 100, "signals");
}

static pthread_key_t key;

/* Runs when the thread's own variables are nearly destroyed. */
NOINLINE static void at_end_of_thread(void *block)
{
	free(block);
	free(malloc(LARGE));
	keep(malloc(LARGE + 9));
}

static void *thread_main(void *none)
{
	(void)none;
	pthread_setspecific(key, malloc(LARGE));
	return NULL;
}

NOINLINE static void threads(void)
{
	pthread_key_create(&key, at_end_of_thread);
	for (int number = 0; number < 20; number++) {
		pthread_t thread;

		check(pthread_create(&thread, NULL, thread_main, NULL) == 0, "pthread_create");
		pthread_join(thread, NULL);
	}
}

/* The child frees a block that it has inherited: that does not change the parent's. */
NOINLINE static void forks(void)
{
	void *block = malloc(LARGE);
	int status;
	pid_t child = fork();

	if (child == 0) {
		free(block);
		free(malloc(LARGE));
		_exit(0);
	}
	check(waitpid(child, &status, 0) == child && status == 0, "the child");
	keep(block);
}

/* Before main, and before the library's own constructor. */
NOINLINE static void early(void)
{
	keep(malloc(LARGE));
}

#ifdef __GLIBC__
__attribute__((section(".preinit_array"), used)) static void (*const before_all)(void) = early;
#else
__attribute__((constructor)) static void before_main(void)
{
	early();
}
#endif

int main(void)
{
	rendezvous("ready");
	each_function();
	freed();
	failed();
	nulls();
	errors_are_kept();
	handler();
	threads();
	forks();
	rendezvous("done");
	return 0;
}
