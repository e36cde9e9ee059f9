/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The trail of a walk: all memory that it depends on, apart from its initial registers, the mapping list and the
 * tables.
 *
 * A walk with the same initial registers that finds the same value in each of these places takes the same steps, by
 * induction: up to any read it has done the same, so it reads the next value from the same place. A dependency that
 * cannot be expressed in this way makes the walk unrepeatable.
 */
#pragma once

#include "config.h"
#include "fast/state.h"
#include "seam.h"

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
 * Adds a slot that the walk depends on. Branch-free, as the verifier would follow each branch at each use of this: if
 * the trail is full, an earlier slot is overwritten and the trail marked as unrepeatable.
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

/*
 * Notes a slot that the frame pointer was read from, below that of the return address. It enters the trail only if
 * used.
 */
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
