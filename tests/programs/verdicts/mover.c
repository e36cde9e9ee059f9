/*
 * Blocks that are held all the time, but whose pointers keep moving: threads move them between tables, lists, variables
 * on their stacks, other blocks, and one another. While it is moved, a pointer is only in a register. So a search that
 * looks at one place after the other misses some.
 *
 * usage: mover HELD BYTES LOST MOVES [THREADS] [free]
 *
 * HELD blocks have BYTES together, and LOST ones of the same size are lost from the start. MOVES is per second, of all
 * threads; `max` is as many as possible. Says `started`, and after a line allocates and says `ready`; after another, it
 * walks through all places, says `held N of HELD, M moves`, and with `free` frees each block where it finds it, says
 * `freed` and waits for a line. The exit status is 0 if no block was missing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define MAGIC 0x6d6f7665u
#define MAX_THREADS 64
/* Places of one thread, beside its table: lists, variables of its frame, and pockets of a block that has them. */
#define LISTS 64
#define VARIABLES 256
#define POCKETS 4
/* Places through which threads exchange blocks. */
#define SHARED 1024
/* One of this many blocks has pockets. It is never put into a pocket, so that no block is within itself. */
#define CARRIERS 8
#define MIN_SIZE sizeof(struct block)

struct block {
	uint32_t magic;
	uint32_t id;
	struct block *volatile next;
	struct block *volatile pockets[POCKETS];
};

typedef struct block *volatile place;

struct mover {
	pthread_t thread;
	uint64_t random;
	uint32_t first, count;
	/* As many places as the thread has blocks at first. */
	place *table;
	place *variables;
	place lists[LISTS];
	uint64_t moves;
	uint32_t found;
};

static struct mover movers[MAX_THREADS];
static struct block *_Atomic shared[SHARED];
static uint8_t *seen;
static uint32_t held, lost, threads = 1;
static size_t size;
/* Moves per second and thread. */
static double rate;
static int is_limited, frees;
static atomic_int stop, ready;
static pthread_barrier_t stopped;

static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

NOINLINE static void *allocate(size_t bytes)
{
	void *block = malloc(bytes);

	if (!block)
		fail("malloc");
	return block;
}

/* Initializes a whole block, without pointers. */
static struct block *fresh(struct block *block, uint32_t id)
{
	memset(block, 0x5a, size);
	memset(block, 0, sizeof(*block));
	block->magic = MAGIC;
	block->id = id;
	return block;
}

NOINLINE static struct block *hold(uint32_t id)
{
	return fresh(allocate(size), id);
}

NOINLINE static void lose(uint32_t id)
{
	fresh(allocate(size), id);
}

static inline uint32_t draw(struct mover *self, uint32_t below)
{
	self->random ^= self->random << 13;
	self->random ^= self->random >> 7;
	self->random ^= self->random << 17;
	return (self->random >> 32) * below >> 32;
}

static inline int is_carrier(const struct block *block)
{
	return block->id % CARRIERS == 0;
}

static inline void push(place *list, struct block *block)
{
	block->next = *list;
	*list = block;
}

static inline struct block *pop(place *list)
{
	struct block *first = *list;

	if (first) {
		*list = first->next;
		first->next = NULL;
	}
	return first;
}

/* Returns a place for one block; null if the block chosen to contain it has no pockets. */
static inline place *any_place(struct mover *self, int *is_pocket)
{
	uint32_t kind = draw(self, 8);
	place *found = &self->table[draw(self, self->count)];

	*is_pocket = 0;
	if (kind == 0)
		return &self->variables[draw(self, VARIABLES)];
	if (kind > 3)
		return found;
	struct block *carrier = *found;

	if (!carrier || !is_carrier(carrier))
		return NULL;
	*is_pocket = 1;
	return &carrier->pockets[draw(self, POCKETS)];
}

/* Takes a block from any place. Then only a register of the caller has it. */
static inline struct block *take(struct mover *self)
{
	struct block *block;
	int is_pocket;

	for (;;) {
		uint32_t way = draw(self, 16);

		if (way == 0) {
			block = atomic_exchange_explicit(&shared[draw(self, SHARED)], NULL, memory_order_acq_rel);
		} else if (way < 4) {
			block = pop(&self->lists[draw(self, LISTS)]);
		} else {
			place *from = any_place(self, &is_pocket);

			block = from ? *from : NULL;
			if (block)
				*from = NULL;
		}
		if (block)
			return block;
		if (atomic_load_explicit(&stop, memory_order_relaxed))
			return NULL;
	}
}

/* Puts it into any place. Lists have room for all. */
static inline void put(struct mover *self, struct block *block)
{
	int is_pocket;

	for (int try = 0; try < 3; try++) {
		struct block *nobody = NULL;
		place *to;

		if (draw(self, 16) == 0) {
			if (atomic_compare_exchange_strong(&shared[draw(self, SHARED)], &nobody, block))
				return;
			continue;
		}
		to = any_place(self, &is_pocket);
		if (to && !*to && !(is_pocket && is_carrier(block))) {
			*to = block;
			return;
		}
	}
	push(&self->lists[draw(self, LISTS)], block);
}

static void move(struct mover *self)
{
	struct block *block = take(self);

	if (!block)
		return;
	put(self, block);
	self->moves++;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Moves at the rate, a millisecond's worth at a time. */
static void move_at_rate(struct mover *self)
{
	struct timespec pause = {.tv_nsec = 1000000};
	double begin = now();
	uint64_t done = 0;

	while (!atomic_load(&stop)) {
		uint64_t due = is_limited ? (now() - begin) * rate : done + 4096;

		for (; done < due && !atomic_load_explicit(&stop, memory_order_relaxed); done++)
			move(self);
		if (is_limited)
			nanosleep(&pause, NULL);
	}
}

/* Counts the block of a place, and those that it holds. */
static void account(struct mover *self, place *from)
{
	struct block *block = *from;

	while (block) {
		struct block *next = block->next;

		if (block->magic != MAGIC || block->id >= held || seen[block->id])
			fail("a block that is not what it was");
		seen[block->id] = 1;
		self->found++;
		for (int pocket = 0; pocket < POCKETS; pocket++)
			account(self, &block->pockets[pocket]);
		if (frees)
			free(block);
		block = next;
	}
}

static void account_all(struct mover *self)
{
	for (uint32_t at = 0; at < self->count; at++)
		account(self, &self->table[at]);
	for (uint32_t at = 0; at < VARIABLES; at++)
		account(self, &self->variables[at]);
	for (uint32_t at = 0; at < LISTS; at++)
		account(self, &self->lists[at]);
}

static void *run(void *argument)
{
	struct mover *self = argument;
	place variables[VARIABLES] = {0};

	self->variables = variables;
	self->table = allocate(self->count * sizeof(*self->table));
	for (uint32_t at = 0; at < self->count; at++)
		self->table[at] = hold(self->first + at);
	for (uint32_t at = 0; at < lost / threads; at++)
		lose(at);
	atomic_fetch_add(&ready, 1);
	move_at_rate(self);
	pthread_barrier_wait(&stopped);
	account_all(self);
	return NULL;
}

static void start(void)
{
	seen = calloc(held, 1);
	if (!seen)
		fail("calloc");
	for (uint32_t at = 0; at < threads; at++) {
		struct mover *self = &movers[at];

		self->random = 0x9e3779b97f4a7c15u * (at + 1);
		self->first = (uint64_t)held * at / threads;
		self->count = (uint64_t)held * (at + 1) / threads - self->first;
		if (pthread_create(&self->thread, NULL, run, self) != 0)
			fail("pthread_create");
	}
	/* This thread loses the remaining ones. */
	for (uint32_t at = 0; at < lost % threads; at++)
		lose(at);
	while (atomic_load(&ready) < (int)threads)
		usleep(1000);
}

/* Stops all threads and counts the held blocks; returns whether these are all. */
static int settle(void)
{
	uint64_t moves = 0, found = 0;
	char line[100];

	atomic_store(&stop, 1);
	for (uint32_t at = 0; at < threads; at++) {
		pthread_join(movers[at].thread, NULL);
		moves += movers[at].moves;
		found += movers[at].found;
	}
	movers[0].found = 0;
	for (uint32_t at = 0; at < SHARED; at++) {
		place last = atomic_load(&shared[at]);

		account(&movers[0], &last);
	}
	found += movers[0].found;
	snprintf(line, sizeof(line), "held %llu of %u, %llu moves", (unsigned long long)found, held, (unsigned long long)moves);
	say(line);
	return found == held;
}

int main(int argc, char **argv)
{
	int whole;

	if (argc < 5)
		return 2;
	held = strtoul(argv[1], NULL, 10);
	lost = strtoul(argv[3], NULL, 10);
	for (int at = 5; at < argc; at++) {
		if (strcmp(argv[at], "free") == 0)
			frees = 1;
		else
			threads = strtoul(argv[at], NULL, 10);
	}
	if (threads < 1 || threads > MAX_THREADS || held < threads)
		return 2;
	size = strtoull(argv[2], NULL, 10) / held;
	if (size < MIN_SIZE)
		size = MIN_SIZE;
	is_limited = strcmp(argv[4], "max") != 0;
	rate = strtod(argv[4], NULL) / threads;
	pthread_barrier_init(&stopped, NULL, threads);
	rendezvous("started");
	start();
	rendezvous("ready");
	whole = settle();
	if (frees)
		rendezvous("freed");
	return !whole;
}
