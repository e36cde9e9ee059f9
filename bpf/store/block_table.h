/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The block table: blocks by instance and address. Kernel memory is taken for each as it comes.
 *
 * A value is copied before its element is deleted, never read afterwards.
 */
#pragma once

#include "config.h"
#include "hash.h"
#include "kernel.h"
#include "maps.h"
#include "seam.h"

static __always_inline struct block_key block_key(u32 instance, u64 address)
{
	return (struct block_key){ .address = address, .instance = instance };
}

static __always_inline bool keeps_young(void)
{
	return young_mask != 0;
}

/*
 * How many of the table's blocks have addresses that are alike: where it is none, the table need not be asked. Kept where
 * it is mostly asked for blocks that it does not have: not all are recorded, or most are young. Never less than there
 * are: counted up before a block enters, down after it has left.
 */
static __always_inline u32 *alike_blocks(struct block_key *key)
{
	u32 *all = alike;
	u64 hash = mix(key->instance, key->address);

	OPAQUE(all);
	return &all[hash & (ALIKE_COUNTS - 1)];
}

static __always_inline bool counts_alike(void)
{
	return sampling != SAMPLE_ALL || filter_sizes || keeps_young();
}

static __always_inline bool is_surely_absent(struct block_key *key)
{
	return counts_alike() && !*(volatile u32 *)alike_blocks(key);
}

/* Enters a block, unless there is one under its key. Returns 0 or an error. */
static __always_inline long enter_block(struct block_key *key, struct block *block)
{
	long error;

	if (counts_alike())
		__sync_fetch_and_add(alike_blocks(key), 1);
	error = bpf_map_update_elem(&blocks, key, block, BPF_NOEXIST);
	if (error && counts_alike())
		__sync_fetch_and_add(alike_blocks(key), -1);
	return error;
}

/* Exactly one of several that try at once succeeds. */
static __always_inline bool remove_block(struct block_key *key)
{
	if (bpf_map_delete_elem(&blocks, key))
		return false;
	if (counts_alike())
		__sync_fetch_and_add(alike_blocks(key), -1);
	return true;
}

/* Copies a block and takes it out. */
static __always_inline bool take_from_table(struct block_key *key, struct block *taken)
{
	struct block *block;

	if (is_surely_absent(key))
		return false;
	block = bpf_map_lookup_elem(&blocks, key);
	if (!block)
		return false;
	*taken = *block;
	return remove_block(key);
}
