/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The trail of a walk: all that it depends on beside the registers that it began with, the mapping list and the tables.
 *
 * A walk that begins with the same registers and finds the same in each of these places takes the same way, by
 * induction: up to any of them it has done the same, so that it reads the next from the same place. What cannot
 * be said in this way makes it unrepeatable.
 */
#pragma once

#include "config.h"
#include "seam.h"
#include "shared.h"

/* Stack bytes that a walk's window holds at most, and that all slots of a trail must be in. */
#define WINDOW_BITS 14
#define WINDOW_BYTES (1 << WINDOW_BITS)
/* Slots of the longest trail, some 100 frames. */
#define TRAIL_SLOT_BITS 7
#define TRAIL_SLOTS (1 << TRAIL_SLOT_BITS)
/* Words that tell the objects apart that can be unloaded, see struct mapping. */
#define TRAIL_CHECKS 8

/* What has become of the frame pointer that a frame has. */
enum fp_use {
	/* It is the register's at the start, and nothing has depended on it. */
	FP_OF_START = 0,
	/* It is from a slot, and nothing has depended on it. */
	FP_OF_SLOT = 1,
	/* The trail has it. */
	FP_IN_TRAIL = 2,
};

struct trail {
	/* The stack pointer at the walk's start: what slots are counted from. */
	u64 base;
	/* Bytes of the stack that hold all slots. */
	u64 stack_bytes;
	u64 slot_count;
	u32 check_count;
	/* Not 0 if it does not say all. */
	u64 unrepeatable;
	/* The walk depends on the frame pointer that it began with. */
	bool needs_fp;
	/* enum fp_use. Code without frame pointers keeps anything in their register: its slots matter to few walks. */
	u8 fp_use;
	u64 fp_slot;
	u64 fp_value;
	struct mapping_check checks[TRAIL_CHECKS];
	/* Bytes from `base` to each slot that was read, and what it held. */
	u16 slot_at[TRAIL_SLOTS];
	u64 slot_value[TRAIL_SLOTS];
};

/* What a walk found: see fast/memo.h. */
struct memo {
	/* Not 0 while a probe uses it. */
	u64 taken;
	/* Of the process slot, see enum generation; 0 when there is nothing in the memo. */
	u64 state;
	/* Where the walk began. */
	u64 pc;
	u64 sp;
	u64 fp;
	/* What the frame pointer may differ in: nothing, or all. */
	u64 fp_unneeded;
	/* Index of the record of the stack that it found, and the function that was called from there. */
	u32 stack;
	u32 function;
	/* Its trail. The last slot is repeated up to a multiple of four. */
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
 * A slot that the walk depends on. Without branches, of which the verifier would follow each at each of the places that
 * this is used at: where there is no room, an earlier slot is overwritten, and the trail is of no use any more.
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

/* A slot that the frame pointer was read from, below that of the return address. What it held is needed if it is used. */
static __always_inline void leave_fp(struct trail *trail, u64 slot, u64 value)
{
	if (!walk_memo)
		return;
	trail->unrepeatable |= (slot - trail->base) >> WINDOW_BITS;
	trail->fp_use = FP_OF_SLOT;
	trail->fp_slot = slot;
	trail->fp_value = value;
}

/* The walk goes on by what the frame pointer holds. */
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

/* A word outside the stack that was read, and held what it should. */
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
