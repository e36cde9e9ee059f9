/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Frames that are kept of a walk: all, if they are at most MAX_FRAMES; else the innermost and the outermost ones.
 * Mirrors unwind-tables/src/walk/kept.rs.
 *
 * Frames beyond the innermost ones are in a ring, as a walk does not know how deep the stack is until its end.
 */
#pragma once

#include "hash.h"
#include "kernel.h"
#include "seam.h"
#include "walk/state.h"

_Static_assert(INNERMOST_FRAMES + OUTERMOST_FRAMES == MAX_FRAMES, "a kept frame is one or the other");
_Static_assert(INNERMOST_FRAMES == 256 && OUTERMOST_FRAMES == 256, "place_of_frame takes the number's low byte");

/*
 * Returns the place of frame `number`: the number, or beyond MAX_FRAMES the place of the frame OUTERMOST_FRAMES before
 * it. Branch-free, as the verifier would follow each branch at each use of this.
 */
static __always_inline u32 place_of_frame(u32 number)
{
	/* 1 from INNERMOST_FRAMES on: the difference is below 0. */
	u32 is_beyond = (INNERMOST_FRAMES - 1 - number) >> 31;
	u32 place = (number & (OUTERMOST_FRAMES - 1)) | is_beyond * INNERMOST_FRAMES;

	/* Already in range, but the verifier of Linux 6.1 knows nothing of the result of a 32-bit `or`. */
	OPAQUE(place);
	return place & (MAX_FRAMES - 1);
}

static __always_inline bool has_left_out(struct walk *walk)
{
	return walk->frame_count > MAX_FRAMES;
}

/* Kept frames that are added to the hash at once; the innermost ones are a multiple of it. */
#define HASHED_AT_ONCE 8

/*
 * Adds some of the kept frames to the hash: the innermost in step 0, and so on. Not static: verified once, by itself.
 */
__noinline int mix_kept_frames(struct fast_walk *fast, u32 step)
{
	if (!fast)
		return 0;

	struct walk *walk = walk_of(fast);
	u32 first = step * HASHED_AT_ONCE;
	u64 hash = walk->hash;

	if (first >= INNERMOST_FRAMES)
		first += walk->frame_count - MAX_FRAMES;
#pragma unroll
	for (u32 number = first; number < first + HASHED_AT_ONCE; number++)
		hash = mix(hash, walk->frames[place_of_frame(number)]);
	walk->hash = hash;
	return 0;
}

/*
 * Returns whether those of the first `count` frames that were kept are still there after a walk went on to `reached`
 * frames.
 */
static __always_inline bool are_kept(u32 count, u32 reached)
{
	u32 first = count > MAX_FRAMES ? count - OUTERMOST_FRAMES : INNERMOST_FRAMES;

	return first >= count || reached <= first + OUTERMOST_FRAMES;
}

/* Goes back to the innermost frames. */
static __always_inline void keep_innermost(struct walk *walk)
{
	walk->frame_count = INNERMOST_FRAMES;
	walk->hash = 0;
	for (u32 step = 0; step < INNERMOST_FRAMES / HASHED_AT_ONCE; step++)
		mix_kept_frames(fast_of(walk), step);
}

/*
 * If a walk has left out frames, makes its hash that of the kept frames alone. The number of the others is not hashed:
 * a recursion that allocates at each depth has one stack record, not thousands that fill the store.
 */
static __always_inline void forget_left_out(struct walk *walk)
{
	if (!has_left_out(walk))
		return;
	walk->hash = MAX_FRAMES;
	for (u32 step = 0; step < MAX_FRAMES / HASHED_AT_ONCE; step++)
		mix_kept_frames(fast_of(walk), step);
}
