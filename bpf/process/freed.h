/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Notes of memory that blocks were freed from (--verdict). Until the allocator gives such memory out again, the process
 * does not use its contents. User space draws that conclusion (crates/reach/src/free/seen.rs) for memory that is in no
 * block, and only if all of these are known here:
 *
 *  - every block that was allocated since. So a call whose block is not recorded, or may not be, voids the notes of
 *    earlier frees;
 *  - every mapping that was made since: the allocator may have given the memory back to the kernel, and it may be
 *    something else by now, a thread's stack for example. Removed mappings need not be known, as nothing is there.
 *
 * If an allocator took memory for itself since, all of it that is in no block is unused, whatever it was before. That
 * includes the allocator's own records, which lead to blocks that were given out.
 *
 * A note is not removed when its memory is allocated again, as the block there says so. Thus allocations cost nothing
 * extra.
 */
#pragma once

#include "config.h"
#include "kernel.h"
#include "maps.h"
#include "process/freed_memory.h"
#include "store/block_table.h"

/* Generous bound, in nanoseconds, on how far the clocks of two CPUs and the order of their writes can differ. */
#define SAME_TIME 1000000

static __always_inline struct trust *trust_of(u32 instance)
{
	return &trusts[instance & (TRUSTS - 1)];
}

/* Voids all notes of frees until now. */
static __always_inline void doubt(u32 instance, enum doubt cause)
{
	struct trust *trust = trust_of(instance);

	if (!notes_frees)
		return;
	*(volatile u64 *)&trust->cause = cause;
	*(volatile u64 *)&trust->void_before = bpf_ktime_get_ns() + SAME_TIME;
}

/* Voids all notes on an instance, now and later. */
static __always_inline void doubt_for_good(u32 instance, enum doubt cause)
{
	doubt(instance, cause);
	*(volatile u64 *)&trust_of(instance)->is_lost = 1;
}

/* Returns the time for a note on a block that is about to be freed; 0 if frees are not noted. */
static __always_inline u64 freeing_time(void)
{
	return notes_frees ? bpf_ktime_get_ns() : 0;
}

/* Notes that a block of `size` bytes was freed, not before `freed_at`. */
static __always_inline void note_freed(u32 instance, u64 address, u64 size, u64 freed_at)
{
	struct block_key key = block_key(instance, address);
	struct freed_block freed = { .size = size, .freed_at = freed_at };
	struct freed_block *known;

	if (!notes_frees)
		return;
	known = bpf_map_lookup_elem(&freed_blocks, &key);
	if (known) {
		/* In this order: a later time is right for either size. */
		*(volatile u64 *)&known->freed_at = freed_at;
		*(volatile u64 *)&known->size = size;
	} else if (bpf_map_update_elem(&freed_blocks, &key, &freed, BPF_NOEXIST)) {
		__sync_fetch_and_add(&trust_of(instance)->not_noted, 1);
	}
}

/* Handles the free of a block that is not known: if it was freed before, an allocation since then was not seen. */
static __always_inline void doubt_if_freed(u32 instance, u64 address)
{
	struct block_key key = block_key(instance, address);

	if (notes_frees && bpf_map_lookup_elem(&freed_blocks, &key))
		doubt(instance, DOUBT_FREED_AGAIN);
}

/*
 * Returns whether a nested call only passes the outer one on: it asks for the same size, or for that size rounded up to
 * a multiple of a power of two, as for an alignment. For 0 bytes, every allocator gives out at least one.
 */
static __always_inline bool is_passed_on(u64 outer, u64 inner)
{
	outer += !outer;
	inner += !inner;
	return inner >= outer && inner - outer < (inner & -inner);
}

/*
 * Handles a nested allocation, which is not recorded: if its block may be another than the outer call's, earlier notes
 * are void.
 */
static __always_inline void nested_allocation(u32 instance, u64 outer, u64 inner)
{
	if (notes_frees && !is_passed_on(outer, inner))
		doubt(instance, DOUBT_NESTED_CALL);
}

/*
 * Notes that a mapping call gives the process the memory from `start` to `end`, where nothing was before if
 * `by_allocator`.
 */
static __always_inline void note_taken(u32 instance, u64 start, u64 end, bool by_allocator)
{
	struct block_key key = block_key(instance, start);
	struct taken_range taken = { .end = end | (by_allocator ? TAKEN_BY_ALLOCATOR : 0) };
	struct taken_range *known = bpf_map_lookup_elem(&taken_ranges, &key);

	taken.taken_at = bpf_ktime_get_ns();
	/* The rest of a longer range noted before counts as equally new, and as not the allocator's. */
	if (known && (known->end & ~(u64)TAKEN_BY_ALLOCATOR) > end)
		taken.end = known->end & ~(u64)TAKEN_BY_ALLOCATOR;
	if (bpf_map_update_elem(&taken_ranges, &key, &taken, BPF_ANY))
		doubt(instance, DOUBT_LOST_MAPPING);
}
