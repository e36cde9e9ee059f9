/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The block table: blocks by instance and address. Not preallocated: kernel memory is allocated for each element.
 *
 * A value is copied before its element is deleted, and never read afterwards.
 */
#pragma once

#include "hash.h"
#include "kernel.h"
#include "seam.h"
#include "store/store_config.h"
#include "store/store_maps.h"

static __always_inline struct block_key block_key(u32 instance, u64 address)
{
	return (struct block_key){ .address = address, .instance = instance };
}

static __always_inline bool keeps_young(void)
{
	return young_mask != 0;
}

/*
 * Returns the count of blocks in the table whose keys have the same hash: if it is 0, no lookup is needed. Only kept if
 * most lookups are of absent blocks: not all are recorded, or most are young. Never too low: incremented before a block
 * enters and decremented after it has left.
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

/* Inserts a block, unless its key is present (-EEXIST). Returns 0 or an error. */
static __always_inline int enter_block(struct block_key *key, struct block *block)
{
	/* Before Linux 6.4, the functions of maps return 32 bits, and the upper half of what a program gets is 0. */
	int error;

	if (counts_alike())
		__sync_fetch_and_add(alike_blocks(key), 1);
	error = (int)bpf_map_update_elem(&blocks, key, block, BPF_NOEXIST);
	if (error && counts_alike())
		__sync_fetch_and_add(alike_blocks(key), -1);
	return error;
}

/* Removes a block; returns whether it was present. Of several concurrent calls, exactly one succeeds. */
static __always_inline bool remove_block(struct block_key *key)
{
	if (bpf_map_delete_elem(&blocks, key))
		return false;
	if (counts_alike())
		__sync_fetch_and_add(alike_blocks(key), -1);
	return true;
}

/* Copies a block and removes it; returns whether it was present and removed by this call. */
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
