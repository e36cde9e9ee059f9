/*
 * Allocates blocks of all sizes in several threads, of which some end, and frees most of them in other threads.
 * Prints the state of each block, `used ADDRESS USABLE` or `freed ADDRESS USABLE`, and what the allocator itself says
 * of its memory, `figure NAME VALUE`; then `end`. After a line, it has the allocator give its free memory back, and
 * prints `released`.
 *
 * usage: crossed [BLOCKS [plain]]    BLOCKS: allocated by each thread at first, 20000 at most
 *                                    plain: none of them is aligned
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include "../handshake.h"
#include "../keep.h"

#define THREADS 6
#define MAX_BLOCKS 20000

struct record {
	char *at;
	size_t usable;
	int is_used;
};

static struct record records[THREADS][MAX_BLOCKS];
/* Blocks of each thread. */
static size_t blocks = MAX_BLOCKS;
static int has_aligned = 1;
static pthread_barrier_t step, release_step;

static size_t random_below(uint64_t *state, size_t limit)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % limit;
}

static void get(struct record *it, uint64_t *state)
{
	size_t kind = random_below(state, 1000);
	size_t size = kind < 800 ? random_below(state, 300) : kind < 980 ? random_below(state, 9000)
		    : kind < 998 ? random_below(state, 100000) : random_below(state, 900000);

	it->at = has_aligned && kind % 50 == 7 ? aligned_alloc(64 << kind % 9, size + 1) : malloc(size);
	if (!it->at)
		_exit(2);
	it->usable = malloc_usable_size(it->at);
	/* Words that look like links to free blocks. */
	for (size_t word = 0; word < it->usable / 8; word++)
		((char **)it->at)[word] = word % 2 ? NULL : it->at + 16 * word;
	it->is_used = 1;
}

static void put(struct record *it)
{
	it->is_used = 0;
	free(it->at);
}

static void release(void)
{
	void (*tcmalloc)(void) = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
	void (*mimalloc)(_Bool) = dlsym(RTLD_DEFAULT, "mi_collect");

	if (tcmalloc)
		tcmalloc();
	if (mimalloc)
		mimalloc(1);
}

static void *work(void *argument)
{
	size_t number = (uintptr_t)argument;
	uint64_t state = number + 1;

	for (size_t i = 0; i < blocks; i++)
		get(&records[number][i], &state);
	pthread_barrier_wait(&step);
	/* Blocks of another thread: stretches of all of them, then most of the others. */
	struct record *theirs = records[(number + 1) % THREADS];

	for (size_t i = 0; i < blocks; i++)
		if (i / (blocks / 10 + 1) % 3 == 0 || random_below(&state, 4))
			put(&theirs[i]);
	pthread_barrier_wait(&step);
	/* Takes what the caches have, frees some again. */
	struct record *own = records[number];

	for (size_t i = 0; i < blocks; i++)
		if (!own[i].is_used && random_below(&state, 10) == 0)
			get(&own[i], &state);
	for (size_t i = 0; i < blocks; i++)
		if (own[i].is_used && random_below(&state, 5) == 0)
			put(&own[i]);
	pthread_barrier_wait(&step);
	if (number % 3 == 2)
		return NULL;
	/* mimalloc gives back the free memory of the calling thread, and of threads that have ended. */
	pthread_barrier_wait(&release_step);
	release();
	pthread_barrier_wait(&release_step);
	pause();
	return NULL;
}

static void say_figures(void)
{
	static const char *const names[] = {
		"generic.current_allocated_bytes",	"generic.heap_size",
		"tcmalloc.pageheap_free_bytes",		"tcmalloc.pageheap_unmapped_bytes",
		"tcmalloc.central_cache_free_bytes",	"tcmalloc.transfer_cache_free_bytes",
		"tcmalloc.thread_cache_free_bytes",
	};
	int (*read)(const char *, size_t *) = dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty");
	char line[100];
	size_t value;

	for (size_t i = 0; read && i < sizeof(names) / sizeof(*names); i++)
		if (read(names[i], &value)) {
			snprintf(line, sizeof(line), "figure %s %zx", names[i], value);
			say(line);
		}
}

int main(int count, char **arguments)
{
	pthread_t threads[THREADS];
	char line[100];

	if (count > 1)
		blocks = strtoul(arguments[1], NULL, 10) % (MAX_BLOCKS + 1);
	has_aligned = count < 3;
	setvbuf(stdout, NULL, _IONBF, 0);
	pthread_barrier_init(&step, NULL, THREADS);
	/* The threads that live on, and the first one. */
	pthread_barrier_init(&release_step, NULL, THREADS - THREADS / 3 + 1);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	for (size_t i = 2; i < THREADS; i += 3)
		pthread_join(threads[i], NULL);
	/* All threads have done their part. What is freed now stays in lists that their owners would empty. */
	for (size_t i = 0; i < blocks; i += 8)
		for (size_t thread = 0; thread < THREADS; thread++)
			if (records[thread][i].is_used)
				put(&records[thread][i]);
	for (size_t thread = 0; thread < THREADS; thread++)
		for (size_t i = 0; i < blocks; i++) {
			struct record *it = &records[thread][i];

			snprintf(line, sizeof(line), "%s %zx %zx", it->is_used ? "used" : "freed", (size_t)it->at, it->usable);
			say(line);
		}
	say_figures();
	rendezvous("end");
	pthread_barrier_wait(&release_step);
	pthread_barrier_wait(&release_step);
	release();
	rendezvous("released");
	return 0;
}
