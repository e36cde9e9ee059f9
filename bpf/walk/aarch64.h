/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Steps that are AArch64's: frame records, and the link register. Mirrors unwind-tables/src/walk/aarch64.rs. */
#pragma once

/* The slot of a rule, counted from 1; 0 for none. */
static __always_inline u64 record_slot(u32 rule)
{
	return rule_b(rule) & (RECORD_SIGNED - 1);
}

/* Nothing is on the stack: only a frame that was running can have its return address in the link register. */
static __always_inline enum end_cause return_by_link(struct walk *walk, u32 rule, u64 cfa)
{
	walk->trail.unrepeatable = true;
	if (!walk->lr_known)
		return END_UNSUPPORTED_RULE;
	if (cfa < walk->sp)
		return END_NO_PROGRESS;
	go_to(walk, return_address(rule, walk->lr), cfa, walk->fp);
	return END_NONE;
}

/* A function that has a frame record keeps its address in the frame pointer; others do not say where they are. */
static __always_inline enum end_cause apply_record_without_sp(struct walk *walk, u32 rule)
{
	if (rule_kind(rule) == RULE_SP && record_slot(rule))
		return apply_fp(walk, END_UNSUPPORTED_RULE);
	return END_UNSUPPORTED_RULE;
}

static __always_inline enum end_cause apply_record(struct walk *walk, u32 rule)
{
	bool from_fp = rule_kind(rule) == RULE_FP;

	if (!from_fp && !sp_is_known(walk))
		return apply_record_without_sp(walk, rule);

	u64 base = from_fp ? walk->fp : walk->sp;
	u64 cfa = base + 8 * rule_a(rule);
	u64 slot = base + 8 * record_slot(rule) - 8;
	u64 fp = walk->fp, ra;

	if (from_fp)
		use_fp(&walk->trail);
	if (!record_slot(rule))
		return return_by_link(walk, rule, cfa);
	if (cfa <= walk->sp)
		return END_NO_PROGRESS;
	if (rule_kind(rule) != RULE_LONE) {
		if (!read_fp_slot(walk, slot, &fp))
			return END_READ_FAULT;
		slot += 8;
	}
	if (!read_slot(walk, slot, &ra))
		return END_READ_FAULT;
	go_to(walk, return_address(rule, ra), cfa, fp);
	return END_NONE;
}

/* The equations of apply_record for the short way: whether `rule` is one of them. */
static __always_inline bool find_record(u32 rule, u64 sp, u64 fp, struct caller_slots *slots)
{
	u64 kind = (u64)rule_kind(rule) - RULE_SP;
	u64 from_fp = -(u64)(kind == RULE_FP - RULE_SP);
	u64 is_lone = -(u64)(kind == RULE_LONE - RULE_SP);
	u64 base;

	OPAQUE(from_fp);
	OPAQUE(is_lone);
	base = sp + ((fp - sp) & from_fp);
	slots->cfa = base + 8 * rule_a(rule);
	slots->fp = base + 8 * record_slot(rule) - 8;
	slots->ra = slots->fp + (8 & ~is_lone);
	slots->has_fp = ~is_lone;
	return kind <= RULE_LONE - RULE_SP && record_slot(rule) && slots->cfa > sp;
}
