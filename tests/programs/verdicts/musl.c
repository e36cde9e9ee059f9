/*
 * Blocks that are held, and blocks that are lost, with stale pointers where musl's malloc leaves them: in freed slots,
 * and in reused slots behind the end of a block, and before its start. Each is allocated below a function of its kind.
 *
 * usage: musl [attached]
 *
 * `attached` waits for a line before the first of them. Then prints `NAME BLOCKS TRUTH DEFINITELY INDIRECTLY` for each
 * kind, and `old ADDRESS` for a few blocks lost before that line. After `ready` nothing changes until a line comes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "../handshake.h"

#define NOINLINE __attribute__((noipa))

enum { BLOCKS = 20, SIZE = 64, LARGE = 300000, OLD = 11 };

struct count {
	unsigned blocks, definitely;
};

#define KIND(name)                                                          \
	NOINLINE void *name(size_t size)                                    \
	{                                                                   \
		void *block = malloc(size);                                 \
                                                                            \
		if (!block)                                                 \
			_exit(1);                                           \
		/* Clears stale pointers from unintended places. */         \
		return memset(block, 0, size);                              \
	}

typedef void *allocate_block(size_t size);

static struct count each(unsigned blocks)
{
	return (struct count){ blocks, blocks };
}

/* Clears pointers that calls have left on the stack and in registers. */
NOINLINE static void scrub(void)
{
	volatile char below[24 << 10];

	for (size_t at = 0; at < sizeof(below); at++)
		below[at] = 0;
	asm volatile("xor %%eax, %%eax; xor %%ecx, %%ecx; xor %%edx, %%edx; xor %%esi, %%esi; xor %%edi, %%edi;"
		     "xor %%r8d, %%r8d; xor %%r9d, %%r9d; xor %%r10d, %%r10d; xor %%r11d, %%r11d"
		     :
		     :
		     : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11");
}

NOINLINE static void fill(void *volatile *table, allocate_block *allocate, size_t size)
{
	for (size_t at = 0; at < BLOCKS; at++)
		table[at] = allocate(size);
}

/* Allocates a block that is not under test. */
NOINLINE static void *volatile *scaffold(size_t size)
{
	void *block = malloc(size);

	if (!block)
		_exit(1);
	return memset(block, 0, size);
}

static sem_t settled;

static void *start_thread(void *(*run)(void *))
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL) != 0)
		_exit(1);
	while (sem_wait(&settled) != 0) {
	}
	return (void *)thread;
}

NOINLINE static void wait_for_ever(void)
{
	scrub();
	sem_post(&settled);
	for (;;)
		pause();
}

KIND(held_by_data)
static struct count set_up_data(void)
{
	static void *volatile table[BLOCKS] = { &settled };

	fill(table, held_by_data, SIZE);
	return each(BLOCKS);
}

KIND(held_by_main_stack)
static void *volatile *of_main;
static struct count set_up_main_stack(void)
{
	fill(of_main, held_by_main_stack, SIZE);
	return each(BLOCKS);
}

KIND(held_by_tls)
static __thread void *volatile of_thread[BLOCKS];
static struct count set_up_tls(void)
{
	fill(of_thread, held_by_tls, SIZE);
	return each(BLOCKS);
}

KIND(held_by_specific)
static struct count set_up_specific(void)
{
	for (int at = 0; at < BLOCKS; at++) {
		pthread_key_t key;

		if (pthread_key_create(&key, NULL) != 0)
			_exit(1);
		pthread_setspecific(key, held_by_specific(SIZE));
	}
	return each(BLOCKS);
}

KIND(held_by_specific_of_thread)
static void *run_with_specific(void *argument)
{
	for (int at = 0; at < BLOCKS; at++) {
		pthread_key_t key;

		if (pthread_key_create(&key, NULL) != 0)
			_exit(1);
		pthread_setspecific(key, held_by_specific_of_thread(SIZE));
	}
	wait_for_ever();
	return argument;
}
static struct count set_up_specific_of_thread(void)
{
	start_thread(run_with_specific);
	return each(BLOCKS);
}

KIND(held_by_tls_of_thread)
static void *run_with_tls(void *argument)
{
	fill(of_thread, held_by_tls_of_thread, SIZE);
	wait_for_ever();
	return argument;
}
static struct count set_up_tls_of_thread(void)
{
	start_thread(run_with_tls);
	return each(BLOCKS);
}

KIND(held_by_thread_stack)
static void *run_with_stack(void *argument)
{
	void *volatile table[BLOCKS] = { argument };

	fill(table, held_by_thread_stack, SIZE);
	wait_for_ever();
	return table[0];
}
static struct count set_up_thread_stack(void)
{
	start_thread(run_with_stack);
	return each(BLOCKS);
}

#ifdef __x86_64__
KIND(held_by_register)
static void *run_with_register(void *argument)
{
	static uint32_t word;
	void *block = held_by_register(SIZE);

	(void)argument;
	asm volatile("mov %[block], %%rbx; xor %[block], %[block]; call *%[post];"
		     "1: mov $202, %%eax; mov %[word], %%rdi; mov $128, %%esi; xor %%edx, %%edx; xor %%r10d, %%r10d;"
		     "syscall; jmp 1b"
		     : [block] "+r"(block)
		     : [post] "r"(sem_post), [word] "r"(&word), "D"(&settled)
		     : "rbx", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory");
	return NULL;
}
static struct count set_up_register(void)
{
	for (int at = 0; at < BLOCKS; at++)
		start_thread(run_with_register);
	return each(BLOCKS);
}
#endif

struct node {
	struct node *volatile next;
};

static struct node *make_list(allocate_block *allocate)
{
	struct node *first = NULL;

	for (int at = 0; at < BLOCKS; at++) {
		struct node *node = allocate(at % 2 ? SIZE : 40 * SIZE);

		node->next = first;
		first = node;
	}
	return first;
}

KIND(held_by_list)
static struct count set_up_list(void)
{
	static struct node *volatile list;

	list = make_list(held_by_list);
	return each(BLOCKS);
}

KIND(held_by_middle)
static struct count set_up_middle(void)
{
	static char *volatile table[BLOCKS];

	for (int at = 0; at < BLOCKS; at++)
		table[at] = (char *)held_by_middle(LARGE / (at + 1)) + 9 + at;
	return each(BLOCKS);
}

KIND(held_in_mapping)
static struct count set_up_mapping(void)
{
	void *volatile *table = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (table == MAP_FAILED)
		_exit(1);
	fill(table, held_in_mapping, SIZE);
	return each(BLOCKS);
}

KIND(held_by_old)
/* Held by a block from before the line. */
static void *volatile *volatile old;
static struct count set_up_old(void)
{
	fill(old, held_by_old, SIZE);
	return each(BLOCKS);
}

KIND(held_by_moved)
/* Held by blocks in separate mappings, each of which begins at another distance from its start, grows, and moves. */
static struct count set_up_moved(void)
{
	static void *volatile *volatile tables[BLOCKS];

	for (int at = 0; at < BLOCKS; at++) {
		void *volatile *table = scaffold(LARGE);

		table[LARGE / 8 - 1] = held_by_moved(SIZE);
		tables[at] = realloc((void *)table, (at + 3) * LARGE);
	}
	return each(BLOCKS);
}

KIND(held_by_aligned)
/* Held by a block that begins more than 1 MiB behind the start of its slot. */
static struct count set_up_aligned(void)
{
	static void *volatile *volatile table;

	table = aligned_alloc(8 << 20, 9 << 20);
	fill(table + 4096, held_by_aligned, SIZE);
	return each(BLOCKS);
}

KIND(held_by_grown)
/* Held by blocks that have grown within their slots. */
static struct count set_up_grown(void)
{
	static void *volatile *volatile tables[BLOCKS];

	for (int at = 0; at < BLOCKS; at++) {
		tables[at] = realloc((void *)scaffold(400), 488);
		tables[at][60] = held_by_grown(SIZE);
	}
	return each(BLOCKS);
}

KIND(lost_plainly)
static struct count set_up_plainly(void)
{
	for (int at = 0; at < BLOCKS; at++)
		lost_plainly(SIZE << at % 12);
	return each(BLOCKS);
}

KIND(lost_large)
static struct count set_up_large(void)
{
	for (int at = 0; at < BLOCKS; at++)
		lost_large(LARGE + at * 4096);
	return each(BLOCKS);
}

KIND(lost_list)
static struct count set_up_lost_list(void)
{
	make_list(lost_list);
	return (struct count){ BLOCKS, 1 };
}

KIND(lost_ring)
static struct node *first_of(struct node *list)
{
	for (struct node *node = list;; node = node->next)
		if (!node->next) {
			node->next = list;
			return list;
		}
}
static struct count set_up_ring(void)
{
	first_of(make_list(lost_ring));
	return (struct count){ BLOCKS, 1 };
}

KIND(lost_below_stack_pointer)
NOINLINE static void fill_deep_frame(void)
{
	void *volatile deep[4096];

	fill(deep + 64, lost_below_stack_pointer, SIZE);
}
static void *run_shallow(void *argument)
{
	fill_deep_frame();
	sem_post(&settled);
	for (;;)
		pause();
	return argument;
}
static struct count set_up_below_stack_pointer(void)
{
	start_thread(run_shallow);
	return each(BLOCKS);
}

KIND(lost_with_thread)
static void *run_to_end(void *argument)
{
	fill(of_thread, lost_with_thread, SIZE);
	return argument;
}
static struct count set_up_with_thread(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run_to_end, NULL) != 0 || pthread_join(thread, NULL) != 0)
		_exit(1);
	return each(BLOCKS);
}

/* Turns an address into a word that is none, and back: a lost block may later be at the address of a freed one. */
static void *volatile *hidden(void *volatile *block)
{
	return (void *volatile *)~(uintptr_t)block;
}

/* Leaves pointers in every second one of some blocks of a size, at a word, and frees these blocks. */
static void leave(allocate_block *allocate, void *volatile *volatile *blocks, size_t size, size_t word)
{
	for (int at = 0; at < 2 * BLOCKS; at++) {
		blocks[at] = scaffold(size);
		blocks[at][word] = at % 2 ? allocate(SIZE) : NULL;
	}
	for (int at = 1; at < 2 * BLOCKS; at += 2) {
		free((void *)blocks[at]);
		blocks[at] = hidden(blocks[at]);
	}
}

KIND(lost_stale_in_small)
static struct count set_up_stale_in_small(void)
{
	static void *volatile *volatile blocks[2 * BLOCKS];

	leave(lost_stale_in_small, blocks, 28, 1);
	return each(BLOCKS);
}

KIND(lost_stale_in_middle)
static struct count set_up_stale_in_middle(void)
{
	static void *volatile *volatile blocks[2 * BLOCKS];

	leave(lost_stale_in_middle, blocks, 1700, 200);
	return each(BLOCKS);
}

KIND(lost_stale_in_wide)
static struct count set_up_stale_in_wide(void)
{
	static void *volatile *volatile blocks[2 * BLOCKS];

	leave(lost_stale_in_wide, blocks, 20000, 2000);
	return each(BLOCKS);
}

/*
 * Allocates smaller blocks until they reuse the old slots: stale pointers are then in the last words of slots, or in
 * the first, before blocks that begin further on. musl reuses slots once no group of their size has others.
 */
static void take_again(void *volatile *volatile *old_blocks, size_t size, size_t word)
{
	enum { MOST = 4000 };
	static void *volatile *volatile taken[2][MOST];
	static int uses;
	int used = uses++, again = 0;

	for (int at = 0; at < MOST && again < BLOCKS / 2; at++) {
		void *volatile *block = taken[used][at] = scaffold(size);

		for (int number = 1; number < 2 * BLOCKS; number += 2) {
			void *volatile *place = hidden(old_blocks[number]) + word;

			again += place >= block + size / 8 && place - block < 64 ? 1 : block > place && block - place < 64;
		}
	}
	if (again < BLOCKS / 2)
		_exit(3);
}

KIND(lost_stale_in_tail)
static struct count set_up_stale_in_tail(void)
{
	static void *volatile *volatile blocks[2 * BLOCKS];

	leave(lost_stale_in_tail, blocks, 230, 28);
	take_again(blocks, 190, 28);
	return each(BLOCKS);
}

KIND(lost_stale_before)
static struct count set_up_stale_before(void)
{
	static void *volatile *volatile blocks[2 * BLOCKS];

	leave(lost_stale_before, blocks, 1000, 0);
	take_again(blocks, 900, 0);
	return each(BLOCKS);
}

static const struct {
	const char *name;
	struct count (*set_up)(void);
} kinds[] = {
	{ "held_by_data", set_up_data },
	{ "held_by_main_stack", set_up_main_stack },
	{ "held_by_tls", set_up_tls },
	{ "held_by_specific", set_up_specific },
	{ "held_by_specific_of_thread", set_up_specific_of_thread },
	{ "held_by_tls_of_thread", set_up_tls_of_thread },
	{ "held_by_thread_stack", set_up_thread_stack },
#ifdef __x86_64__
	{ "held_by_register", set_up_register },
#endif
	{ "held_by_list", set_up_list },
	{ "held_by_middle", set_up_middle },
	{ "held_in_mapping", set_up_mapping },
	{ "held_by_old", set_up_old },
	{ "held_by_moved", set_up_moved },
	{ "held_by_aligned", set_up_aligned },
	{ "held_by_grown", set_up_grown },
	{ "lost_plainly", set_up_plainly },
	{ "lost_large", set_up_large },
	{ "lost_list", set_up_lost_list },
	{ "lost_ring", set_up_ring },
	{ "lost_below_stack_pointer", set_up_below_stack_pointer },
	{ "lost_with_thread", set_up_with_thread },
	{ "lost_stale_in_small", set_up_stale_in_small },
	{ "lost_stale_in_middle", set_up_stale_in_middle },
	{ "lost_stale_in_wide", set_up_stale_in_wide },
	{ "lost_stale_in_tail", set_up_stale_in_tail },
	{ "lost_stale_before", set_up_stale_before },
};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

NOINLINE static void say_old(void)
{
	char line[64];

	for (int at = 0; at < OLD; at++) {
		snprintf(line, sizeof(line), "old %zx", (size_t)scaffold(777 + at));
		say(line);
	}
}

int main(int count_arguments, char **arguments)
{
	static struct count counts[KINDS];
	void *volatile table[BLOCKS] = { arguments };
	char line[128];

	sem_init(&settled, 0, 0);
	of_main = table;
	old = scaffold(BLOCKS * sizeof(*old));
	say_old();
	scrub();
	if (count_arguments > 1)
		await_line();
	for (int kind = 0; kind < KINDS; kind++) {
		counts[kind] = kinds[kind].set_up();
		scrub();
	}
	for (int kind = 0; kind < KINDS; kind++) {
		struct count count = counts[kind];

		snprintf(line, sizeof(line), "%s %u %.4s %u %u", kinds[kind].name, count.blocks, kinds[kind].name,
			 count.definitely, count.blocks - count.definitely);
		say(line);
	}
	say("ready");
	memset(line, 0, sizeof(line));
	scrub();
	await_line();
	_exit(table[0] == NULL);
}
