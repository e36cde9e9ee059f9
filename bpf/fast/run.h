/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The loop of a walk. It goes over several frames at once as long as their rules are cached and plain, and their slots in
 * the window; every other frame is one step.
 */
#pragma once

#include "config.h"
#include "fast/rule_cache.h"
#include "fast/window.h"
#include "kernel.h"
#include "walk/unwind.h"

/* Frames that are gone over at once. */
#define RUN_FRAMES 4

/* Where the caller of a frame is. Whether `rule` is plain. */
static __always_inline bool find_caller(u32 rule, u64 sp, u64 fp, struct caller_slots *slots)
{
	if (!unwind_by_fp)
		return find_slots(rule, sp, fp, slots);
	slots->cfa = fp + 16;
	slots->ra = fp + 8;
	slots->fp = fp;
	slots->has_fp = ~0ULL;
	return rule_kind(rule) == RULE_CHAIN && fp >= sp && fp % 8 == 0 && fp - sp <= MAX_FP_DISTANCE;
}

/*
 * Goes over frames as long as their rules are cached and plain, and the window holds what they need. What
 * a frame needs beyond that is left to `step`, from the same frame on. Returns whether there were as many as it takes.
 * `leaves_trail`: a constant.
 */
static __always_inline bool step_plain_frames(struct fast_walk *fast, bool leaves_trail)
{
	struct walk *walk = &fast->walk;
	u64 pc = walk->pc, sp = walk->sp, fp = walk->fp, hash = walk->hash;
	u64 found_by = walk->found_by;
	u64 start = fast->window_start, last = fast->window_bytes - 8;
	u32 list = walk->list, first = walk->frame_count, done;

	OPAQUE(first);
	if (!walk->pc_adjust || fast->window_bytes < 8 || first > MAX_FRAMES - RUN_FRAMES)
		return false;
	if (!plain_rules_apply(walk))
		return false;
#pragma unroll
	for (done = 0; done < RUN_FRAMES; done++) {
		/* No address in it is to be reckoned before its frame: they would take more stack than kernels give. */
		OPAQUE(fast);
		walk = &fast->walk;

		u32 rule = plain_rule(list, pc);
		struct caller_slots slots;

		if (!find_caller(rule, sp, fp, &slots) || slots.ra - start > last || slots.fp - start > last)
			break;

		u64 frame = pc | found_by << FRAME_FOUND_BY_SHIFT;
		u64 ra = window_word(fast, slots.ra - start);
		u64 caller_fp = window_word(fast, slots.fp - start);

		walk->frames[first + done] = frame;
		walk->sps[first + done] = sp;
		walk->fps[first + done] = fp;
		if (leaves_trail && (unwind_by_fp || rule_kind(rule) == RULE_FP))
			use_fp(&fast->trail);
		if (leaves_trail && slots.has_fp)
			leave_fp(&fast->trail, slots.fp, caller_fp);
		if (leaves_trail)
			leave_trail(&fast->trail, slots.ra, ra);
		hash = mix(hash, frame);
		pc = return_address(rule, ra);
		sp = slots.cfa;
		fp ^= (fp ^ caller_fp) & slots.has_fp;
		found_by = unwind_by_fp ? FOUND_BY_FP : FOUND_BY_CFI;
	}
	walk->pc = pc;
	walk->sp = sp;
	walk->fp = fp;
	walk->hash = hash;
	walk->found_by = found_by;
	walk->frame_count = first + done;
	if (done)
		forget_link(&walk->link);
	return done == RUN_FRAMES;
}

static long step_until_end(u64 number, struct walk **context)
{
	struct walk *walk = *context;
	struct fast_walk *fast = fast_of(walk);

	if (takes(walk_cache && walk_window, fast) &&
	    (walk_memo && fast->leaves_trail ? step_plain_frames(fast, true) : step_plain_frames(fast, false)))
		return 0;

	enum end_cause end = step(walk, cached_rule(walk));

	if (end == END_NONE)
		return 0;
	walk->end = end;
	return 1;
}

/* As begin_walk. What the window holds must be of now, or nothing. */
static __always_inline void begin_fast_walk(struct fast_walk *fast, u32 list, u64 changing, u64 pc)
{
	begin_walk(&fast->walk, list, changing, pc);
	begin_trail(&fast->trail, fast->walk.sp);
}

/*
 * Walks the stack. Afterwards frames, frame_count, hash, end, pc (where it ended), saves_wanted, stack_end and, if one was
 * to be left, trail are set.
 */
static __always_inline void walk_stack(struct fast_walk *fast)
{
	struct walk *walk = &fast->walk;

	if (takes(walk_window, fast) && !fast->window_bytes &&
	    !read_window(fast, walk->sp, window_to_end(fast, walk->sp)))
		fast->stack_end = 0;
	/* A step more for each frame to put its return address back, and one that finds the stack to be deeper. */
	bpf_loop(2 * MAX_FRAMES + 2, step_until_end, &walk, 0);
	if (walk->end == END_COMPLETE)
		fast->stack_end = walk->sp;
}

/* Whether all that a finished walk depended on is in its trail. Of other ends, the reason is elsewhere. */
static __always_inline bool is_repeatable(struct fast_walk *fast)
{
	u32 end = fast->walk.end;

	if (fast->trail.unrepeatable || !fast->trail.slot_count)
		return false;
	return end == END_COMPLETE || end == END_FP_CHAIN_END || end == END_NO_CFI;
}
