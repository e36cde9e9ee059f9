/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk: from the registers at a probe to the frames of the stack and the one cause that ended it. This file has its
 * start and one step; the loop is in fast/run.h.
 *
 * Mirrors unwind-tables/src/walk.rs function by function. The fast paths in fast/ do not change its result. Also
 * compiles for the host (tests/host_bpf).
 */
#pragma once

#include "config.h"
#include "hash.h"
#include "kernel.h"
#include "walk/arch.h"
#include "walk/kept_frames.h"
#include "walk/generated.h"
#include "walk/mappings.h"
#include "walk/own_frame.h"
#include "walk/program.h"
#include "walk/registers.h"
#include "walk/return_probes.h"
#include "walk/returns.h"
#include "walk/tables.h"

/* Returns the rule for `address`, from its mapping. */
static __always_inline u32 rule_in_mapping(struct walk *walk, struct mapping *mapping, u64 address)
{
	if (mapping->kind == MAPPING_TRAMPOLINE)
		return RULE(RULE_STOP, STOP_TRAMPOLINE);
	if (unwind_by_fp) {
		if (walk->found_by == FOUND_BY_PROBE || is_after_call(walk->pc))
			return RULE(RULE_CHAIN, 0);
		/* The code before pc may only be temporarily unreadable: the result is not repeatable. */
		depend_on_more(walk);
		return RULE(RULE_STOP, STOP_NOT_CALLED);
	}
	switch (mapping->kind) {
	case MAPPING_TABLE:
		return rule_in_image(mapping->image_at, address - mapping->bias);
	case MAPPING_PENDING:
		return RULE(RULE_STOP, STOP_PENDING);
	case MAPPING_ANONYMOUS:
		return RULE(RULE_STOP, STOP_ANONYMOUS);
	case MAPPING_ANONYMOUS_LINKED:
		return RULE(RULE_STOP, STOP_ANONYMOUS_LINKED);
	case MAPPING_ANONYMOUS_METHODS:
		return RULE(RULE_STOP, STOP_ANONYMOUS_METHODS);
	case MAPPING_ANONYMOUS_STUB:
		return RULE(RULE_STOP, STOP_ANONYMOUS_STUB);
	case MAPPING_ANONYMOUS_PUSHED:
		return RULE(RULE_STOP, STOP_ANONYMOUS_PUSHED);
	case MAPPING_NO_TABLE:
		return RULE(RULE_STOP, STOP_NO_TABLE);
	default:
		return RULE_GAP;
	}
}

/* Returns the rule for an address outside of all mappings, which is conclusive only while the list is up to date. */
static __always_inline u32 rule_without_mapping(struct walk *walk)
{
	return RULE(RULE_STOP, walk->list_state.changing ? STOP_STALE : STOP_NO_MAPPING);
}

/* Returns the rule for the frame at `pc`, and in `from` its mapping; NULL if it has none, or a stale one. */
static __always_inline u32 lookup_rule(struct walk *walk, struct mapping **from)
{
	u64 address = walk->pc - walk->pc_adjust;
	struct mapping *mapping = find_mapping(walk->list, address);

	*from = NULL;
	if (!mapping)
		return rule_without_mapping(walk);
	if (!is_current(&walk->list_state, mapping))
		return RULE(RULE_STOP, STOP_STALE);
	if (mapping->trust & TRUST_CHECKED)
		depend_on_checks(walk, mapping);
	*from = mapping;
	return rule_in_mapping(walk, mapping, address);
}

/* Returns the end for stops that push no frame, as `pc` is not known to be on the stack; else END_NONE. */
static __always_inline enum end_cause end_without_frame(u32 rule)
{
	if (rule_kind(rule) != RULE_STOP)
		return END_NONE;
	switch (rule_a(rule)) {
	case STOP_NO_MAPPING:
		return END_NO_MAPPING;
	case STOP_TRAMPOLINE:
		return END_URETPROBE_TRAMPOLINE;
	case STOP_NOT_CALLED:
		return END_FP_CHAIN_END;
	case STOP_STALE:
		return END_TABLE_NOT_LOADED;
	default:
		return END_NONE;
	}
}

/* Returns whether the frame is the kernel's signal trampoline, to which signal handlers return. */
static __always_inline bool is_signal_frame(u32 rule)
{
	return rule_kind(rule) == RULE_WIDE && word(rule >> RULE_KIND_BITS) == OP_SIGNAL;
}

/* Records the current frame. `fast/run.h` records others, with the same limit. */
static __always_inline enum end_cause push_frame(struct walk *walk, u32 rule)
{
	u64 exact = walk->pc_adjust == 0 || is_signal_frame(rule);
	u64 frame = walk->pc | (u64)walk->found_by << FRAME_FOUND_BY_SHIFT | exact << FRAME_EXACT_SHIFT;
	u32 number = walk->frame_count;

	OPAQUE(number);
	if (number >= MAX_DEPTH)
		return END_DEPTH_LIMIT;

	u32 place = place_of_frame(number);

	walk->frames[place] = frame;
	walk->sps[place] = walk->sp;
	walk->fps[place] = walk->fp;
	walk->frame_count = number + 1;
	walk->hash = mix(walk->hash, frame);
	return END_NONE;
}

static __always_inline void go_to(struct walk *walk, u64 pc, u64 sp, u64 fp)
{
	walk->pc = pc;
	walk->sp = sp;
	walk->fp = fp;
	walk->pc_adjust = 1;
	walk->found_by = FOUND_BY_CFI;
	forget_link(&walk->link);
}

static __always_inline bool may_switch_stack(struct walk *walk)
{
	if (!walk->switches_left)
		return false;
	walk->switches_left--;
	return true;
}

static __always_inline enum end_cause read_caller(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot)
{
	u64 ra, fp = walk->fp;

	if (fp_slot && !read_fp_slot(walk, fp_slot, &fp))
		return END_READ_FAULT;
	/* A trail entry for the return address proves only the words below it readable, not an fp slot above it. */
	if (fp_slot > ra_slot)
		depend_on_fp(walk);
	if (!read_slot(walk, ra_slot, &ra))
		return END_READ_FAULT;
	go_to(walk, ra, cfa, fp);
	return END_NONE;
}

static __always_inline enum end_cause go_to_caller(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot)
{
	return cfa > walk->sp ? read_caller(walk, cfa, ra_slot, fp_slot) : END_NO_PROGRESS;
}

static __always_inline enum end_cause go_to_caller_by_fp(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot)
{
	return cfa > walk->sp || may_switch_stack(walk) ? read_caller(walk, cfa, ra_slot, fp_slot) : END_NO_PROGRESS;
}

static __always_inline enum end_cause apply_fp(struct walk *walk, enum end_cause implausible)
{
	u64 fp = walk->fp;
	u64 caller_fp, ra;

	depend_on_fp(walk);
	if (fp < walk->sp || fp % 8 || fp - walk->sp > MAX_FP_DISTANCE)
		return implausible;
	if (!read_fp_slot(walk, fp, &caller_fp) || !read_slot(walk, fp + 8, &ra))
		return implausible;
	ra = without_code(ra);
	if (!unwind_by_fp) {
		enum returns returns = judge_return_address(walk, ra);

		if (returns == RETURNS_ON_TRIAL && implausible == END_ANONYMOUS_CODE)
			begin_trial(walk);
		else if (returns != RETURNS_YES)
			return implausible;
	}
	walk->sp = fp + 16;
	walk->fp = caller_fp;
	walk->pc = ra;
	walk->pc_adjust = 1;
	walk->found_by = found_by_fp(walk);
	walk->may_lack_callers |= walk->is_doubtful;
	walk->is_doubtful = false;
	/* From here on, CFI by the frame pointer is no better than this one. */
	walk->switches_left = 0;
	forget_link(&walk->link);
	return END_NONE;
}

static __always_inline enum end_cause apply_stop(struct walk *walk, u32 rule)
{
	switch (rule_a(rule)) {
	case STOP_END:
		return walk->may_lack_callers ? END_CALLERS_UNCERTAIN : END_COMPLETE;
	case STOP_GAP:
		if (rule_b(rule) != GAP_FRAMED)
			judge_frame_pointer(walk);
		return apply_fp(walk, END_NO_CFI);
	case STOP_ANONYMOUS:
	case STOP_ANONYMOUS_LINKED:
	case STOP_ANONYMOUS_METHODS:
	case STOP_ANONYMOUS_STUB:
	case STOP_ANONYMOUS_PUSHED:
		return apply_generated(walk, rule_a(rule));
	case STOP_PENDING:
		return END_TABLE_NOT_LOADED;
	case STOP_NO_TABLE:
		return END_NO_TABLE;
	default:
		return END_UNSUPPORTED_RULE;
	}
}

static __always_inline enum end_cause apply_rule(struct walk *walk, u32 rule)
{
	switch (rule_kind(rule)) {
	case RULE_WIDE:
		/* Without tables there are no programs: a constant here lets the verifier skip them. */
		return unwind_by_fp ? END_UNSUPPORTED_RULE : apply_program(walk, rule >> RULE_KIND_BITS);
	case RULE_CHAIN:
		return apply_fp(walk, END_FP_CHAIN_END);
	default:
		/* A stop rule too: the architecture's equations pass it on to `apply_stop`. */
		return apply_equation(walk, rule);
	}
}

/*
 * Restores a return address that a return probe replaced by its trampoline. The kernel identifies it by the stack
 * pointer at the function's entry.
 */
static __always_inline enum end_cause put_back_return_address(struct walk *walk)
{
	u64 address = sp_is_known(walk) ? replaced_return_address(walk->sp - RETURN_SLOT_BYTES) : 0;

	depend_on_more(walk);
	if (!address || address == walk->pc)
		return END_URETPROBE_TRAMPOLINE;
	walk->pc = address;
	return END_NONE;
}

static __always_inline enum end_cause step_by(struct walk *walk, u32 rule)
{
	enum end_cause end = end_without_frame(rule);

	if (end != END_NONE && is_trampoline(walk->pc))
		return put_back_return_address(walk);
	if (end == END_NONE)
		end = push_frame(walk, rule);
	if (end == END_NONE)
		end = apply_rule(walk, rule);
	return end;
}

/* Records the current frame, whose rule is `rule`, and goes to its caller. */
static __always_inline enum end_cause step(struct walk *walk, u32 rule)
{
	settle_trial(walk, rule);
	return end_of_trial(walk, step_by(walk, rule));
}

/*
 * Initializes a walk from `pc` and the registers in `at_probe`. `changing`: a change of the mappings was announced that
 * the list does not contain yet.
 */
static __always_inline void begin_walk(struct walk *walk, u32 list, u64 changing, u64 pc)
{
	walk->pc = pc;
	walk->sp = walk->at_probe[REGISTER_SP];
	walk->fp = walk->at_probe[REGISTER_FP];
	walk->pc_adjust = 1;
	forget_link(&walk->link);
	walk->list = list;
	walk->list_state.changing = changing;
	walk->list_state.verified_start = 0;
	walk->list_state.verified_end = 0;
	walk->found_by = FOUND_BY_PROBE;
	walk->frame_count = 0;
	walk->hash = 0;
	walk->saves_wanted = 0;
	walk->looks_left = MAX_LOOKS;
	walk->trial_frames = 0;
	walk->is_doubtful = false;
	walk->may_lack_callers = false;
	walk->switches_left = MAX_STACK_SWITCHES;
	walk->end = END_DEPTH_LIMIT;
}
