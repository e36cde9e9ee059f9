/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Steps through code that a program generated (a JIT compiler, an interpreter made of templates). Mirrors
 * unwind-tables/src/walk/generated.rs, which explains how frame pointers can mislead there.
 */
#pragma once

#include "kernel.h"
#include "walk/arch.h"
#include "walk/kept_frames.h"
#include "walk/mappings.h"
#include "walk/own_frame.h"
#include "walk/returns.h"

/* Returns whether the frame called native code: the stack pointer is where it was at the call. */
static __always_inline bool calls_native(struct walk *walk)
{
	return walk->pc_adjust && walk->found_by < FOUND_BY_FP;
}

/*
 * Returns whether the frame pointer is this frame's own. Code that does not set it, but may change it, has pushed it
 * next to its return address: a pair of this value and an address of code, between the stack pointer and where the
 * frame pointer leads, means that the frame ends there. An interrupted instruction can be before the push.
 *
 * A JVM that keeps frame pointers has a few stubs that do not. They call native code, with their pair at the stack
 * pointer, and are not among its methods. Only stubs that are not known as such are looked for here.
 *
 * Not static: verified once, by itself. Only prepares the search.
 */
__noinline bool may_be_linked(struct fast_walk *fast, u32 known)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	u64 sp = (walk->sp + 7) & ~7ULL;
	u64 fp = walk->fp;
	u64 end = fp;

	depend_on_more(walk);
	if (!walk->pc_adjust || fp < sp || fp % 8)
		return false;
	if (known != STOP_ANONYMOUS && known != STOP_ANONYMOUS_PUSHED)
		end = known == STOP_ANONYMOUS_LINKED && calls_native(walk) && fp > sp ? sp + 8 : sp;
	if ((end - sp) / 8 > MAX_FRAME_SLOTS)
		return false;
	begin_look(walk, sp, end, LOOK_FOR_PAIR | (known == STOP_ANONYMOUS ? LOOK_FOR_CALLER : 0));
	return true;
}

/* Goes to the caller of a function that returns right after its callee, by the instructions with which it does.
 * Returns whether the frame's function is one. Not static: verified once, by itself. */
__noinline bool go_by_return(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	u64 code, freed, ra_slot, ra;
	bool pops_fp;

	if (!walk->pc_adjust || !sp_is_known(walk) || bpf_probe_read_user(&code, 8, (void *)walk->pc) ||
	    !returns_at_once(code, &freed, &pops_fp))
		return false;
	depend_on_more(walk);
	ra_slot = walk->sp + freed + (pops_fp ? 8 : 0);
	if (!peek_slot(walk, ra_slot, &ra) || judge_return_address(walk, ra) != RETURNS_YES)
		return false;
	return go_to_caller(walk, ra_slot + 8, ra_slot, pops_fp ? ra_slot - 8 : 0) == END_NONE;
}

/*
 * Goes to the caller of generated code: by how it returns, if that can be seen, else by the frame pointer, if that is
 * this frame's own.
 */
static __always_inline enum end_cause apply_generated(struct walk *walk, u32 known)
{
	if (go_by_return(fast_of(walk)))
		return END_NONE;
	if (known == STOP_ANONYMOUS_STUB && calls_native(walk))
		walk->fp = walk->sp;
	if (!may_be_linked(fast_of(walk), known) || !look_at_frame(walk))
		return END_ANONYMOUS_CODE;
	return apply_fp(walk, END_ANONYMOUS_CODE);
}

/* Notes that the frames from here on are on trial. */
static __always_inline void begin_trial(struct walk *walk)
{
	if (walk->trial_frames)
		return;
	walk->trial_frames = walk->frame_count;
	walk->trial_pc = walk->pc;
	walk->trial_hash = walk->hash;
}

/* Ends the trial if the walk has arrived at native code with CFI, by a return address that is behind a call. */
static __always_inline void settle_trial(struct walk *walk, u32 rule)
{
	if (rule_kind(rule) != RULE_STOP || rule_a(rule) == STOP_END)
		walk->trial_frames = 0;
}

/*
 * Returns the end of a walk for which a step found `end`, after dropping frames on trial. If only a table or a mapping
 * is missing, cause and place of the end stay, as the walk may go on once that is there. On a deep stack, frames on
 * trial can have taken the places of others; then only the innermost ones remain.
 */
static __always_inline enum end_cause end_of_trial(struct walk *walk, enum end_cause end)
{
	u32 reached = walk->frame_count;

	if (end == END_NONE || !walk->trial_frames)
		return end;
	walk->frame_count = walk->trial_frames;
	walk->hash = walk->trial_hash;
	walk->trial_frames = 0;

	bool is_kept = are_kept(walk->frame_count, reached);

	if (!is_kept)
		keep_innermost(walk);
	if (end == END_TABLE_NOT_LOADED || end == END_NO_MAPPING || end == END_NO_TABLE)
		return end;
	walk->pc = walk->trial_pc;
	return is_kept ? END_ANONYMOUS_CODE : END_DEPTH_LIMIT;
}

/* Returns the way in which a step by the frame pointer finds a frame. */
static __always_inline enum found_by found_by_fp(struct walk *walk)
{
	if (walk->is_doubtful)
		return FOUND_BY_FP_UNCERTAIN;
	return walk->trial_frames ? FOUND_BY_FP_GENERATED : FOUND_BY_FP;
}
