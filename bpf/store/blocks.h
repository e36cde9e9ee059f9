/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Recording and freeing of blocks, and the totals per stack.
 *
 * Invariant: for each stack, allocated - freed equals the sum of its blocks in young places and the block table, except
 * for blocks that a probe is processing. A block is added to the allocated total before the target knows its address,
 * so a reader never sees more freed than allocated.
 */
#pragma once

#include "calls/call_events.h"
#include "calls/sampling.h"
#include "counters.h"
#include "kernel.h"
#include "store/block_table.h"
#include "store/store_config.h"
#include "store/stacks.h"
#include "store/young.h"

static __always_inline void add(u64 *sum, u64 amount)
{
	__sync_fetch_and_add(sum, amount);
}

/* Adds to a 128-bit sum. Not atomic as a whole: a reader can briefly see the sum without the carry. */
static __always_inline void add_wide(struct wide *sum, struct wide amount)
{
	u64 before = __sync_fetch_and_add(&sum->low, amount.low);

	add(&sum->high, amount.high + (before + amount.low < before));
}

/*
 * Adds one block's share of the sampling variance: with value v (bytes, or 1) and weight w, it is w(w - 1)v^2 of the
 * variance of the sum of wv (the Horvitz-Thompson estimator for independent choices).
 */
static __always_inline void add_variance(struct variance *variance, u64 size, u64 weight)
{
	if (governed && weight == 1ULL << WEIGHT_SHIFT)
		return;

	u64 bytes = weighted_bytes(size, weight);

	add_wide(&variance->bytes, multiply(bytes, bytes > size ? bytes - size : 0));
	add_wide(&variance->blocks, multiply(weight, weight - (1ULL << WEIGHT_SHIFT)));
}

/* Adds a block to sums, or subtracts it: `sign` is 1 or -1. */
static __always_inline void add_sums(struct sums *sums, struct block *block, s64 sign)
{
	add(&sums->blocks, sign);
	if (sampling == SAMPLE_ALL) {
		add(&sums->bytes, sign * block->size);
		return;
	}

	u64 weight = load_weight(block->weight);

	add(&sums->bytes, sign * weighted_bytes(block->size, weight));
	add(&sums->weight, sign * weight);
}

static __always_inline void add_allocated(struct block *block)
{
	if (sampling != SAMPLE_ALL)
		add_variance(&variance_at(block->stack)->allocated, block->size, load_weight(block->weight));
	add_sums(&totals_at(block->stack)->allocated, block, 1);
}

/* Subtracts a block from the allocated total. Its variance is added to the freed one: the outstanding variance is the
 * difference. */
static __always_inline void take_back_allocated(struct block *block)
{
	if (sampling != SAMPLE_ALL)
		add_variance(&variance_at(block->stack)->freed, block->size, load_weight(block->weight));
	add_sums(&totals_at(block->stack)->allocated, block, -1);
}

static __always_inline void add_freed(struct block *block)
{
	if (sampling != SAMPLE_ALL)
		add_variance(&variance_at(block->stack)->freed, block->size, load_weight(block->weight));
	add_sums(&totals_at(block->stack)->freed, block, 1);
}

/* Counts a lost block, at the stack record that allocated it. */
static __always_inline void lose_block(enum counter cause, u64 size, u32 weight, u32 stack)
{
	struct stack_record *record = record_at(stack);
	u64 bytes = size, blocks = 1;

	if (sampling != SAMPLE_ALL) {
		bytes = weighted_bytes(size, load_weight(weight));
		blocks = load_weight(weight) >> WEIGHT_SHIFT;
	}
	add(&record->lost_bytes, bytes);
	add(&record->lost_blocks, blocks);
	count_by(cause, blocks);
	count_by(cause + 1, bytes);
}

/* Counts a lost block whose stack is unknown, at the "not walked" record of `function`. */
static __always_inline void lose_call(enum counter cause, u64 size, u32 weight, u32 function)
{
	lose_block(cause, size, weight, MAX_FUNCTIONS + function);
}

/* Copies a block and removes it from its young place or the table. `lifetimes`: those of the thread, or NULL. */
static __always_inline bool take_by_key(struct block_key *key, struct block *taken, struct lifetimes *lifetimes)
{
	enum young_search found = keeps_young() ? take_young(key, taken) : YOUNG_ELSEWHERE;

	if (found == YOUNG_NOWHERE || (found == YOUNG_ELSEWHERE && !take_from_table(key, taken)))
		return false;
	if (keeps_young())
		judge_lifetime(lifetimes, found == YOUNG_FOUND);
	return true;
}

static __always_inline bool take_block(u32 instance, u64 address, struct block *taken, struct lifetimes *lifetimes)
{
	struct block_key key = block_key(instance, address);

	return take_by_key(&key, taken, lifetimes);
}

static __always_inline bool every_block_is_recorded(void)
{
	return !filter_sizes && (sampling == SAMPLE_ALL || (governed && !*(volatile u64 *)&distance.has_risen));
}

/*
 * Counts a free of an unknown block, if all blocks are recorded; otherwise most frees are of blocks that were not.
 */
static __always_inline void count_unknown_free(void)
{
	if (every_block_is_recorded())
		count(COUNTER_UNKNOWN_FREE);
}

/* Counts and traces a free of an unknown block, if all blocks are recorded. */
static __always_inline void note_unknown_free(u32 instance, u64 address)
{
	if (!every_block_is_recorded())
		return;
	count(COUNTER_UNKNOWN_FREE);
	trace_call(UNKNOWN_FREED, instance, address, 0, 0);
}

/* Records the free of a block and copies it; returns whether it was known. */
static __always_inline bool free_block(u32 instance, u64 address, struct block *block, struct lifetimes *lifetimes)
{
	if (!take_block(instance, address, block, lifetimes))
		return false;
	add_freed(block);
	trace_call(BLOCK_FREED, instance, address, block->size, block->stack);
	return true;
}

/* Records a missed free, if a block is recorded under the key of a new one. */
static __always_inline void end_missed_block(struct block_key *key)
{
	struct block missed;

	if (!take_by_key(key, &missed, NULL))
		return;
	count(COUNTER_MISSED_FREE);
	add_freed(&missed);
}

/* Inserts a block. `lifetimes`: those of the thread, or NULL. Returns false if the block table is full. */
static __always_inline bool insert_block(u32 instance, u64 address, struct block *block, struct lifetimes *lifetimes)
{
	struct block_key key = block_key(instance, address);
	int error;

	if (keeps_young() && (may_die_young(lifetimes) || is_young(&key))) {
		end_missed_block(&key);
		if (put_young(&key, block))
			return true;
	}
	error = enter_block(&key, block);
	if (error == -EEXIST) {
		end_missed_block(&key);
		error = enter_block(&key, block);
	}
	return !error;
}

/*
 * Inserts a block again that a failed resize had removed, or that was split. Returns false if the block table is full.
 */
static __always_inline bool return_block(u32 instance, u64 address, struct block *block)
{
	if (insert_block(instance, address, block, NULL))
		return true;
	take_back_allocated(block);
	lose_block(COUNTER_LOST_BLOCK_TABLE, block->size, block->weight, block->stack);
	return false;
}

/*
 * Inserts a block again that may have been freed. If it was, its address may already belong to another block, which is
 * kept; or the address is allocated later, and the missed free is detected then.
 */
static __always_inline void return_doubtful_block(u32 instance, u64 address, struct block *block)
{
	struct block_key key = block_key(instance, address);

	if ((keeps_young() && is_young(&key)) || enter_block(&key, block))
		add_freed(block);
}

/*
 * Records a new block, all of whose fields are set. Runs before the target gets the address, so the block cannot be
 * freed before it is in the totals. Returns false if the block table is full.
 */
static __always_inline bool record_block(u32 instance, u64 address, struct block *block, struct lifetimes *lifetimes)
{
	bool is_recorded = insert_block(instance, address, block, lifetimes);

	if (is_recorded)
		add_allocated(block);
	else
		lose_block(COUNTER_LOST_BLOCK_TABLE, block->size, block->weight, block->stack);
	trace_call(BLOCK_ALLOCATED, instance, address, block->size, block->stack);
	return is_recorded;
}
