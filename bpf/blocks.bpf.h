/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The block table and the totals per stack.
 *
 * Invariant: for each stack, allocated minus freed is what the block table holds of it. A block is added to
 * the totals before it enters the table and subtracted after it left, so a reader never sees more freed
 * than allocated. A table value is copied before its element is deleted, never read afterwards.
 */
#pragma once

static __always_inline struct block_key block_key(u32 instance, u64 address)
{
	return (struct block_key){ .address = address, .instance = instance };
}

static __always_inline void add_allocated(u32 stack, u64 bytes)
{
	struct stack_record *record = record_at(stack);

	__sync_fetch_and_add(&record->allocated_bytes, bytes);
	__sync_fetch_and_add(&record->allocated_blocks, 1);
}

static __always_inline void take_back_allocated(u32 stack, u64 bytes)
{
	struct stack_record *record = record_at(stack);

	__sync_fetch_and_add(&record->allocated_bytes, -bytes);
	__sync_fetch_and_add(&record->allocated_blocks, -1ULL);
}

static __always_inline void add_freed(struct block *block)
{
	struct stack_record *record = record_at(block->stack);

	__sync_fetch_and_add(&record->freed_bytes, block->size);
	__sync_fetch_and_add(&record->freed_blocks, 1);
}

/* Takes a block out of the table. Exactly one of several that try at once succeeds. */
static __always_inline bool take_block(u32 instance, u64 address, struct block *taken)
{
	struct block_key key = block_key(instance, address);
	struct block *block = bpf_map_lookup_elem(&blocks, &key);

	if (!block)
		return false;
	*taken = *block;
	return bpf_map_delete_elem(&blocks, &key) == 0;
}

/* Returns whether the block was known. */
static __always_inline bool free_block(u32 instance, u64 address)
{
	struct block block;

	if (!take_block(instance, address, &block))
		return false;
	add_freed(&block);
	return true;
}

/* Enters a block whose bytes are in its stack's totals. */
static __always_inline void insert_block(u32 instance, u64 address, struct block *block)
{
	struct block_key key = block_key(instance, address);
	long error = bpf_map_update_elem(&blocks, &key, block, BPF_NOEXIST);

	if (error == -EEXIST) {
		struct block missed;

		count(COUNTER_MISSED_FREE);
		if (take_block(instance, address, &missed))
			add_freed(&missed);
		error = bpf_map_update_elem(&blocks, &key, block, BPF_NOEXIST);
	}
	if (error) {
		take_back_allocated(block->stack, block->size);
		count_lost(COUNTER_LOST_BLOCK_TABLE, block->size);
	}
}

static __always_inline void record_block(u32 instance, u64 address, u64 size, u32 stack)
{
	struct block block = { .size = size, .allocated_at = bpf_ktime_get_ns(), .stack = stack };

	add_allocated(stack, size);
	insert_block(instance, address, &block);
}
