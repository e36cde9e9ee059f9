/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What becomes of blocks, and the totals per stack.
 *
 * Invariant: for each stack, allocated minus freed is what is recorded of it, among the young blocks or in the block
 * table, but for blocks that probes are at work on. A block is added to what was allocated before the target knows its
 * address, so a reader never sees more freed than allocated.
 */
#pragma once

#include "calls/call_events.h"
#include "calls/sampling.h"
#include "config.h"
#include "counters.h"
#include "kernel.h"
#include "store/block_table.h"
#include "store/stacks.h"
#include "store/young.h"

static __always_inline void add(u64 *sum, u64 amount)
{
	__sync_fetch_and_add(sum, amount);
}

/* A reader may see the sum without the carry, for a moment. */
static __always_inline void add_wide(struct wide *sum, struct wide amount)
{
	u64 before = __sync_fetch_and_add(&sum->low, amount.low);

	add(&sum->high, amount.high + (before + amount.low < before));
}

/*
 * What one block says of those that were not chosen: with v its value (bytes, or 1) and w its weight, it adds
 * w(w - 1)v^2 to the variance of the sum of wv (Horvitz and Thompson's estimate for independent choices).
 */
static __always_inline void add_variance(struct variance *variance, u64 size, u64 weight)
{
	if (governed && weight == 1ULL << WEIGHT_SHIFT)
		return;

	u64 bytes = weighted_bytes(size, weight);

	add_wide(&variance->bytes, multiply(bytes, bytes > size ? bytes - size : 0));
	add_wide(&variance->blocks, multiply(weight, weight - (1ULL << WEIGHT_SHIFT)));
}

/* Adds a block to sums, or takes it out again: `sign` is 1 or -1. */
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

/* Its variance goes with what was freed, for what is outstanding is without it then. */
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

/* A block that is not recorded, at the stack that it was allocated from. */
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

/* The same for a block whose stack is not known, having been asked of `function`. */
static __always_inline void lose_call(enum counter cause, u64 size, u32 weight, u32 function)
{
	lose_block(cause, size, weight, MAX_FUNCTIONS + function);
}

/* Copies a block and takes it out, wherever it is. `lifetimes`: of the thread, or NULL. */
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
 * A free of a block that is not known. Where not all are recorded, that says nothing: most frees are of such blocks.
 */
static __always_inline void count_unknown_free(void)
{
	if (every_block_is_recorded())
		count(COUNTER_UNKNOWN_FREE);
}

/* The same, told. */
static __always_inline void note_unknown_free(u32 instance, u64 address)
{
	if (!every_block_is_recorded())
		return;
	count(COUNTER_UNKNOWN_FREE);
	trace_call(UNKNOWN_FREED, instance, address, 0, 0);
}

/* Returns whether the block was known. */
static __always_inline bool free_block(u32 instance, u64 address, struct lifetimes *lifetimes)
{
	struct block block;

	if (!take_block(instance, address, &block, lifetimes))
		return false;
	add_freed(&block);
	trace_call(BLOCK_FREED, instance, address, block.size, block.stack);
	return true;
}

/* What is recorded under the key of a block that is new was freed unseen. */
static __always_inline void end_missed_block(struct block_key *key)
{
	struct block missed;

	if (!take_by_key(key, &missed, NULL))
		return;
	count(COUNTER_MISSED_FREE);
	add_freed(&missed);
}

/* Enters a block. `lifetimes`: of the thread, or NULL. Returns whether there was room. */
static __always_inline bool insert_block(u32 instance, u64 address, struct block *block, struct lifetimes *lifetimes)
{
	struct block_key key = block_key(instance, address);
	long error;

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

/* Enters a block again that was taken out too early. */
static __always_inline void return_block(u32 instance, u64 address, struct block *block)
{
	if (insert_block(instance, address, block, NULL))
		return;
	take_back_allocated(block);
	lose_block(COUNTER_LOST_BLOCK_TABLE, block->size, block->weight, block->stack);
}

/*
 * The same for a block of which it is not known whether it still lives. If it does not, its address may be another
 * block's by now, which stays; or it will be, and the free that was not seen is noticed then.
 */
static __always_inline void return_doubtful_block(u32 instance, u64 address, struct block *block)
{
	struct block_key key = block_key(instance, address);

	if ((keeps_young() && is_young(&key)) || enter_block(&key, block))
		add_freed(block);
}

/* Nobody but this thread knows the block's address yet: it cannot be freed before it is in the totals. */
static __always_inline void record_block(u32 instance, u64 address, struct block *block, struct lifetimes *lifetimes)
{
	block->allocated_at = bpf_ktime_get_ns();
	if (insert_block(instance, address, block, lifetimes))
		add_allocated(block);
	else
		lose_block(COUNTER_LOST_BLOCK_TABLE, block->size, block->weight, block->stack);
	trace_call(BLOCK_ALLOCATED, instance, address, block->size, block->stack);
}
