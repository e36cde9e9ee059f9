/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The trail of a walk: all memory that it depends on, apart from its initial registers, the mapping list and the tables.
 *
 * A walk with the same initial registers that finds the same value in each of these places takes the same steps, by
 * induction: up to any read it has done the same, so it reads the next value from the same place. A dependency that cannot
 * be expressed in this way makes the walk unrepeatable.
 */
#pragma once

#include "config.h"
#include "seam.h"
#include "shared.h"

/* MAX bytes of a stack window, and of the stack range that holds all slots of a trail. */
#define WINDOW_BITS 14
#define WINDOW_BYTES (1 << WINDOW_BITS)
/* MAX slots of a trail: about 100 frames. */
#define TRAIL_SLOT_BITS 7
#define TRAIL_SLOTS (1 << TRAIL_SLOT_BITS)
/* MAX checks of a trail: words that identify objects which can be unloaded, see struct mapping. */
#define TRAIL_CHECKS 8

/* Dependency of a walk on the current frame's frame pointer. */
enum fp_use {
	/* Unused so far; from the register at the start. */
	FP_OF_START = 0,
	/* Unused so far; from a slot. */
	FP_OF_SLOT = 1,
	/* Used, and in the trail. */
	FP_IN_TRAIL = 2,
};

struct trail {
	/* Stack pointer at the walk's start, to which `slot_at` is relative. */
	u64 base;
	/* Bytes of the stack from `base` to the end of the highest slot. */
	u64 stack_bytes;
	u64 slot_count;
	u32 check_count;
	/* Not 0 if the trail is incomplete. */
	u64 unrepeatable;
	/* Set if the walk depends on the initial frame pointer. */
	bool needs_fp;
	/* enum fp_use. Code without frame pointers uses their register for any value, on which few walks depend. */
	u8 fp_use;
	u64 fp_slot;
	u64 fp_value;
	struct mapping_check checks[TRAIL_CHECKS];
	/* Offset from `base` of each slot that was read, in bytes, and its value. */
	u16 slot_at[TRAIL_SLOTS];
	u64 slot_value[TRAIL_SLOTS];
};

/* Result of a walk, see fast/memo.h. */
struct memo {
	/* Not 0 while a probe uses it. */
	u64 taken;
	/* State of the process slot, see enum generation; 0 if the memo is empty. */
	u64 state;
	/* Registers at the start of the walk. */
	u64 pc;
	u64 sp;
	u64 fp;
	/* Mask of bits in which the frame pointer may differ: 0, or all if the walk does not depend on it. */
	u64 fp_unneeded;
	/* Index of the stack record that the walk found, and the allocator function that was called from there. */
	u32 stack;
	u32 function;
	/* The walk's trail. The last slot is repeated up to a multiple of four. */
	u32 stack_bytes;
	u16 slot_count;
	u16 check_count;
	u16 slot_at[TRAIL_SLOTS];
	u64 slot_value[TRAIL_SLOTS];
	struct mapping_check checks[TRAIL_CHECKS];
};

static __always_inline void begin_trail(struct trail *trail, u64 base)
{
	trail->base = base;
	trail->stack_bytes = 0;
	trail->slot_count = 0;
	trail->check_count = 0;
	trail->unrepeatable = 0;
	trail->needs_fp = false;
	trail->fp_use = FP_OF_START;
}

/*
 * Adds a slot that the walk depends on. Branch-free, as the verifier would follow each branch at each use of this: if the
 * trail is full, an earlier slot is overwritten and the trail marked as unrepeatable.
 */
static __always_inline void leave_trail(struct trail *trail, u64 slot, u64 value)
{
	u64 at = slot - trail->base;
	u64 number = trail->slot_count;
	s64 more = at + 8 - trail->stack_bytes;

	if (!walk_memo)
		return;
	trail->unrepeatable |= at >> WINDOW_BITS | at % 8 | number >> TRAIL_SLOT_BITS;
	trail->slot_at[number & (TRAIL_SLOTS - 1)] = at;
	trail->slot_value[number & (TRAIL_SLOTS - 1)] = value;
	trail->slot_count = number + 1;
	trail->stack_bytes += more & ~(more >> 63);
}

/* Notes a slot that the frame pointer was read from, below that of the return address. It enters the trail only if used. */
static __always_inline void leave_fp(struct trail *trail, u64 slot, u64 value)
{
	if (!walk_memo)
		return;
	trail->unrepeatable |= (slot - trail->base) >> WINDOW_BITS;
	trail->fp_use = FP_OF_SLOT;
	trail->fp_slot = slot;
	trail->fp_value = value;
}

/* Notes that the walk uses the value of the frame pointer. */
static __always_inline void use_fp(struct trail *trail)
{
	if (!walk_memo || trail->fp_use == FP_IN_TRAIL)
		return;
	if (trail->fp_use == FP_OF_START)
		trail->needs_fp = true;
	else
		leave_trail(trail, trail->fp_slot, trail->fp_value);
	trail->fp_use = FP_IN_TRAIL;
}

/* Adds a check, a word outside the stack that was read and matched, unless the trail has it already. */
static __always_inline void leave_check(struct trail *trail, struct mapping_check *check)
{
	u32 number = trail->check_count;
	u64 known = 0;

	if (!walk_memo)
		return;
#pragma unroll
	for (u32 earlier = 0; earlier < TRAIL_CHECKS; earlier++)
		known |= earlier < number && trail->checks[earlier].at == check->at;
	OPAQUE(known);
	OPAQUE(number);
	if (known)
		return;
	if (number >= TRAIL_CHECKS) {
		trail->unrepeatable = true;
		return;
	}
	trail->checks[number] = *check;
	trail->check_count = number + 1;
}
