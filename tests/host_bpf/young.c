/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * bpf/store/young.h and what it moves blocks to, compiled for the host: threads allocate and free the same few
 * addresses, and are delayed where another can come between. tests/host/young_blocks.rs loads this as a shared object.
 */
#include <linux/types.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#define __noinline

/* Headers of bpf/ that are replaced by this file. */
#define KERNEL_H
#define STORE_CONFIG_H
#define STORE_MAPS_H
#define COUNTERS_H
#define STACKS_H
#define CALL_EVENTS_H

#include "calls/thread.h"
#include "shared.h"

#define BPF_NOEXIST 1
#define PLACES 2
#define ADDRESSES 24
#define CELLS 12
#define MOST_THREADS 16

static const u32 young_mask = PLACES - 1;
static const u32 sampling = SAMPLE_ALL;
static const u64 sampling_interval = 1;
static const bool governed, filter_sizes;
static const u64 min_size, max_size;
static struct distance distance;
static struct young_block young[PLACES];
static u32 alike[ALIKE_COUNTS];
static struct stack_totals totals;
static struct stack_variance variance;
static struct stack_record record;
static u64 counted[COUNTERS];
static int blocks;

static struct stack_totals *totals_at(u32 stack)
{
	(void)stack;
	return &totals;
}

static struct stack_variance *variance_at(u32 stack)
{
	(void)stack;
	return &variance;
}

static struct stack_record *record_at(u32 stack)
{
	(void)stack;
	return &record;
}

static void count_by(enum counter counter, u64 amount)
{
	__atomic_fetch_add(&counted[counter], amount, __ATOMIC_SEQ_CST);
}

static void count(enum counter counter)
{
	count_by(counter, 1);
}

static u64 bpf_ktime_get_ns(void)
{
	return 0;
}

static u32 bpf_get_prandom_u32(void)
{
	return 0;
}

static unsigned next_random(unsigned *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	return *state ^= *state << 5;
}

/* Delays the thread now and then, by a sleep or by giving up the CPU. */
static void hold_up(void)
{
	static __thread unsigned state;

	if (!state)
		state = (unsigned)(unsigned long)&state | 1;
	next_random(&state);
	if (state % 64 == 0)
		usleep(state / 64 % 64);
	else if (state % 4 == 0)
		sched_yield();
}

static u64 compare_and_swap(u64 *word, u64 expected, u64 next)
{
	hold_up();
	__atomic_compare_exchange_n(word, &expected, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	hold_up();
	return expected;
}

#define __sync_val_compare_and_swap compare_and_swap

/* The block table. */
static struct {
	bool used;
	struct block block;
} table[ADDRESSES];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static u64 number_of(const struct block_key *key)
{
	return key->address / 16 - 1;
}

static struct block *bpf_map_lookup_elem(int *map, struct block_key *key)
{
	u64 number = number_of(key);

	(void)map;
	hold_up();
	return __atomic_load_n(&table[number].used, __ATOMIC_SEQ_CST) ? &table[number].block : NULL;
}

static long bpf_map_update_elem(int *map, struct block_key *key, struct block *block, u64 flags)
{
	u64 number = number_of(key);
	bool used;

	(void)map;
	(void)flags;
	hold_up();
	pthread_mutex_lock(&table_lock);
	used = table[number].used;
	if (!used) {
		table[number].block = *block;
		__atomic_store_n(&table[number].used, true, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&table_lock);
	hold_up();
	return used ? -EEXIST : 0;
}

static long bpf_map_delete_elem(int *map, struct block_key *key)
{
	u64 number = number_of(key);
	bool used;

	(void)map;
	hold_up();
	pthread_mutex_lock(&table_lock);
	used = table[number].used;
	__atomic_store_n(&table[number].used, false, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&table_lock);
	return used ? 0 : -ENOENT;
}

/* Calls are not reported here. */
static void trace_call(enum call_event_kind kind, u32 instance, u64 address, u64 size, u32 stack)
{
	(void)kind;
	(void)instance;
	(void)address;
	(void)size;
	(void)stack;
}

#include "store/blocks.h"

/* An allocator that gives out the address that was freed last. */
static u64 unused[ADDRESSES];
static u32 unused_count;
static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;
/* Number of the last block at each address. */
static u64 given_for[ADDRESSES];
static u64 next_number;
static u64 cells[CELLS];
static u64 wrong;

static u64 allocate(void)
{
	u64 address;

	pthread_mutex_lock(&allocator);
	address = unused[--unused_count];
	pthread_mutex_unlock(&allocator);
	return address;
}

static void release(u64 address)
{
	pthread_mutex_lock(&allocator);
	unused[unused_count++] = address;
	pthread_mutex_unlock(&allocator);
}

/* Allocates a block that differs from all before, for a thread with random lifetimes. */
static u64 record_one(unsigned *random)
{
	struct lifetimes lifetimes = { .long_lives = next_random(random) >> 8 & 1 ? LIVES_LONG : 0 };
	u64 address = allocate();
	struct block block = { .size = __atomic_add_fetch(&next_number, 1, __ATOMIC_SEQ_CST) };

	__atomic_store_n(&given_for[address / 16 - 1], block.size, __ATOMIC_SEQ_CST);
	if (!insert_block(1, address, &block, &lifetimes))
		__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
	return address;
}

/* Frees a block, which must be known, with the content that was recorded. */
static void take_one(u64 address)
{
	struct block block = {};

	if (!take_block(1, address, &block, NULL) ||
	    block.size != __atomic_load_n(&given_for[address / 16 - 1], __ATOMIC_SEQ_CST))
		__atomic_fetch_add(&wrong, 1, __ATOMIC_SEQ_CST);
	release(address);
}

static void *exchange_blocks(void *argument)
{
	unsigned long rounds = (unsigned long)argument;
	unsigned random = 2463534242u ^ (unsigned)(unsigned long)&rounds;

	for (unsigned long round = 0; round < rounds; round++) {
		u64 *cell;
		u64 old;

		cell = &cells[(next_random(&random) >> 8) % CELLS];
		old = __atomic_exchange_n(cell, record_one(&random), __ATOMIC_SEQ_CST);
		if (old)
			take_one(old);
	}
	return NULL;
}

/*
 * Exchanges blocks on `threads` threads and counts errors: a block that was unknown when it was freed, or not as
 * recorded, or for which there was no room; a free that seemed to be missed; a block that is left when all are freed.
 */
u64 host_exchange_blocks(u32 threads, u64 rounds)
{
	pthread_t handles[MOST_THREADS];
	u64 left = 0;

	if (threads > MOST_THREADS || threads + CELLS > ADDRESSES)
		return ~0ULL;
	for (u32 number = 0; number < ADDRESSES; number++)
		release(16 * (number + 1));
	for (u32 number = 0; number < threads; number++)
		pthread_create(&handles[number], NULL, exchange_blocks, (void *)rounds);
	for (u32 number = 0; number < threads; number++)
		pthread_join(handles[number], NULL);
	for (u32 cell = 0; cell < CELLS; cell++) {
		if (cells[cell])
			take_one(cells[cell]);
	}
	for (u32 number = 0; number < ADDRESSES; number++)
		left += table[number].used;
	for (u32 number = 0; number < PLACES; number++)
		left += (young[number].word & (YOUNG_STATE | YOUNG_MOVING)) != 0;
	for (u32 number = 0; number < ALIKE_COUNTS; number++)
		left += alike[number];
	return wrong + left + counted[COUNTER_MISSED_FREE];
}
