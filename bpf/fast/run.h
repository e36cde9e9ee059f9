/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The loop of a walk. Handles several frames per iteration as long as their rules are cached and plain and their slots
 * in the window; every other frame takes one step.
 */
#pragma once

#include "config.h"
#include "fast/rule_cache.h"
#include "fast/window.h"
#include "kernel.h"
#include "walk/unwind.h"

/* Frames per iteration. */
#define RUN_FRAMES 4

/* Evaluates `rule` for a frame. Returns false if it is not plain. */
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
 * Records up to RUN_FRAMES frames whose rules are cached and plain and whose slots are in the window. The first other
 * frame is left to `step`. Returns whether it recorded RUN_FRAMES. `leaves_trail`: a constant.
 */
static __always_inline bool step_plain_frames(struct fast_walk *fast, bool leaves_trail)
{
	/*
	 * A second copy of push_frame, the plain rules and go_to, on local copies of the walk's registers. Values that
	 * depend on the rule are chosen by masks, so the verifier follows one path with one exit per frame. That exit
	 * is before a frame's first store: `step` finds the frame untouched, and the locals describe it.
	 */
	struct walk *walk = &fast->walk;
	u64 pc = walk->pc, sp = walk->sp, fp = walk->fp, hash = walk->hash;
	u64 found_by = walk->found_by;
	u64 start = fast->window_start, last = fast->window_bytes - 8;
	u32 list = walk->list, first = walk->frame_count, done;

	OPAQUE(first);

	u32 place = place_of_frame(first);

	/* `step` records the frames whose places are the last ones, and the last frames of all. */
	if (!walk->pc_adjust || fast->window_bytes < 8 || place > MAX_FRAMES - RUN_FRAMES ||
	    first > MAX_DEPTH - RUN_FRAMES)
		return false;
	/* A trial is settled by `step`. */
	if (!plain_rules_apply(walk) || walk->trial_frames)
		return false;
#pragma unroll
	for (done = 0; done < RUN_FRAMES; done++) {
		/*
		 * Keeps the compiler from computing addresses of later frames early: they would exceed the BPF stack.
		 */
		OPAQUE(fast);
		walk = &fast->walk;

		u32 rule = plain_rule(list, pc);
		struct caller_slots slots;

		/* Offsets are unsigned: a slot below the window is as far out of it as one above. */
		if (!find_caller(rule, sp, fp, &slots) || slots.ra - start > last || slots.fp - start > last)
			break;

		u64 frame = pc | found_by << FRAME_FOUND_BY_SHIFT;
		u64 ra = window_word(fast, slots.ra - start);
		u64 caller_fp = window_word(fast, slots.fp - start);

		walk->frames[place + done] = frame;
		walk->sps[place + done] = sp;
		walk->fps[place + done] = fp;
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
	walk->frame_count += done;
	if (done)
		forget_link(&walk->link);
	return done == RUN_FRAMES;
}

/*
 * Takes the steps of up to RUN_FRAMES plain frames. Returns whether it took RUN_FRAMES. Not static: verified once, by
 * itself.
 */
__noinline bool take_plain_steps(struct fast_walk *fast)
{
	if (!fast || !takes(walk_cache && walk_window, fast))
		return false;
	return walk_memo && fast->leaves_trail ? step_plain_frames(fast, true) : step_plain_frames(fast, false);
}

/* Takes one step. Returns whether the walk goes on. Not static, as above. */
__noinline bool take_step(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = &fast->walk;
	enum end_cause end = step(walk, cached_rule(walk));

	if (end == END_NONE)
		return true;
	walk->end = end;
	return false;
}

/*
 * Takes LOOP_PART steps, or more. Returns whether the walk goes on. Not static, as above. Calls its functions in
 * sequence, not nested, to save BPF stack.
 */
__noinline bool take_steps(struct fast_walk *fast)
{
	if (!fast)
		return false;
	for (u32 number = 0; number < LOOP_PART; number++)
		if (!take_plain_steps(fast) && !take_step(fast))
			return false;
	return true;
}

/* Initializes a walk as begin_walk does, and its trail. The window must be empty or just read. */
static __always_inline void begin_fast_walk(struct fast_walk *fast, u32 list, u64 changing, u64 pc)
{
	begin_walk(&fast->walk, list, changing, pc);
	begin_trail(&fast->trail, fast->walk.sp);
}

/*
 * Walks the stack. Sets frames, frame_count, hash, end, pc (where it ended), saves_wanted, stack_end and, if
 * leaves_trail, trail.
 */
static __always_inline void walk_stack(struct fast_walk *fast)
{
	struct walk *walk = &fast->walk;

	if (takes(walk_window, fast) && !fast->window_bytes &&
	    !read_window(fast, walk->sp, window_to_end(fast, walk->sp)))
		fast->stack_end = 0;
	/*
	 * Two steps for each frame, as its return address may have to be restored, and one that detects a deeper stack.
	 */
	for (u32 number = 0; number < LOOP_PARTS(2 * MAX_DEPTH + 2); number++)
		if (!take_steps(fast))
			break;
	forget_left_out(walk);
	if (walk->end == END_COMPLETE || walk->end == END_CALLERS_UNCERTAIN)
		fast->stack_end = walk->sp;
}

/*
 * Returns whether a finished walk depended on nothing but its trail. Ends other than these depend on state outside of
 * it.
 */
static __always_inline bool is_repeatable(struct fast_walk *fast)
{
	u32 end = fast->walk.end;

	if (fast->trail.unrepeatable || !fast->trail.slot_count)
		return false;
	return end == END_COMPLETE || end == END_FP_CHAIN_END || end == END_NO_CFI;
}
