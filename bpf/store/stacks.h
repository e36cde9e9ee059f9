/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stack records, and the pool of scratches.
 *
 * A record is written once per distinct stack and then never changes except for its losses, so user space may read it
 * at any time.
 */
#ifndef STACKS_H
#define STACKS_H

#include "kernel.h"
#include "seam.h"
#include "shared.h"
#include "store/store_config.h"
#include "store/store_maps.h"
#include "store/scratch.h"
#include "walk/kept_frames.h"

static __always_inline struct stack_record *record_at(u32 index)
{
	struct stack_record *all = stacks;

	OPAQUE(all);
	return &all[index & stack_mask];
}

static __always_inline struct stack_totals *totals_at(u32 index)
{
	struct stack_totals *all = totals;

	OPAQUE(all);
	return &all[index & stack_mask];
}

static __always_inline struct stack_variance *variance_at(u32 index)
{
	struct stack_variance *all = variances;

	OPAQUE(all);
	return &all[index & variance_mask];
}

/* Takes a free scratch of this CPU and sets `key`; returns NULL if all are taken. */
static __always_inline struct scratch *take_scratch(u32 *key)
{
	u32 first = bpf_get_smp_processor_id() * SCRATCH_PER_CPU;

	for (u32 number = 0; number < SCRATCH_PER_CPU; number++) {
		*key = first + number;

		struct scratch *scratch = bpf_map_lookup_elem(&scratches, key);

		if (scratch && !__sync_lock_test_and_set(&scratch->taken, 1))
			return scratch;
	}
	return NULL;
}

static __always_inline void release_scratch(struct scratch *scratch)
{
	asm volatile("" ::: "memory");
	*(volatile u64 *)&scratch->taken = 0;
}

/* Reserves space in `frames`; returns the index of the first one, or frame_capacity if the space is exhausted. */
static __always_inline u64 reserve_frames(u64 frame_count)
{
	if (usage.frames + frame_count > frame_capacity)
		return frame_capacity;

	u64 at = __sync_fetch_and_add(&usage.frames, frame_count);

	return at + frame_count > frame_capacity ? frame_capacity : at;
}

static __always_inline u64 reserve_record(void)
{
	if (usage.stacks >= stack_capacity)
		return stack_capacity;
	return __sync_fetch_and_add(&usage.stacks, 1);
}

/* Stores the stack of a finished walk; returns its index, or that of the function's "not stored" record. */
static __always_inline u32 store_stack(struct walk *walk, u64 id, u32 instance, u32 epoch, u32 function, u32 python)
{
	u64 kept = has_left_out(walk) ? MAX_FRAMES : walk->frame_count;
	u64 frames_at = reserve_frames(kept);
	u64 reserved = reserve_record();
	u32 index = reserved;

	if (frames_at >= frame_capacity || reserved >= stack_capacity)
		return function;

	u64 *store = frames;

	OPAQUE(store);
	OPAQUE(kept);
	if (kept > MAX_FRAMES)
		return function;
	bpf_probe_read_kernel(&store[frames_at & frame_mask], 8 * kept, walk->frames);

	struct stack_record *record = record_at(index);

	record->id = id;
	record->end_pc = walk->pc;
	record->frames_at = frames_at;
	record->frame_count = walk->frame_count;
	record->end = walk->end;
	record->function = function;
	record->epoch = epoch;
	record->instance = instance;
	record->python = python;

	if (bpf_map_update_elem(&stack_ids, &id, &index, BPF_NOEXIST) == 0)
		return index;

	/* Another CPU has stored the same stack meanwhile: this record remains without totals. */
	u32 *stored = bpf_map_lookup_elem(&stack_ids, &id);

	return stored ? *stored : function;
}

#endif
