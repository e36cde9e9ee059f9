/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk: from the registers at a probe to the frames of the stack and the one cause that ended it.
 *
 * Mirrors unwind-tables/src/walk.rs function by function; what is here and not there are the rule cache, the
 * stack window, the short way over plain frames and the trail, which change nothing but the time. Compiles for the
 * host too (tests/host_bpf): the only helpers are bpf_probe_read_user and bpf_loop, and what walk/return_probes.h
 * knows is given there.
 */
#pragma once

#include "walk/call.h"
#include "fast/window.h"
#include "walk/link.h"
#include "walk/registers.h"
#include "walk/program.h"

static __always_inline bool is_after_call(u64 ra)
{
	u64 code;

	return is_aligned(ra) && bpf_probe_read_user(&code, 8, (void *)(ra - 8)) == 0 && ends_in_call(code);
}

/*
 * Whether `ra` can be a return address: in executable memory, behind a call or in a trampoline.
 * Whether the mapping is there, or still there, is asked when its rule is looked up.
 */
static __always_inline bool is_return_address(struct walk *walk, u64 ra)
{
	struct mapping *mapping = find_mapping(walk->list, ra - 1);

	walk->trail.unrepeatable = true;
	if (!mapping && !walk->list_state.changing)
		return is_trampoline(ra);
	return (mapping && mapping->kind == MAPPING_TRAMPOLINE) || is_after_call(ra) || is_trampoline(ra);
}

/* The rule for `address`, from its mapping. */
static __always_inline u32 find_rule(struct walk *walk, struct mapping *mapping, u64 address)
{
	if (mapping->kind == MAPPING_TRAMPOLINE)
		return RULE(RULE_STOP, STOP_TRAMPOLINE);
	if (unwind_by_fp) {
		if (walk->found_by == FOUND_BY_PROBE || is_after_call(walk->pc))
			return RULE(RULE_CHAIN, 0);
		/* It may not be readable now, but later. */
		walk->trail.unrepeatable = true;
		return RULE(RULE_STOP, STOP_NOT_CALLED);
	}
	switch (mapping->kind) {
	case MAPPING_TABLE:
		return rule_in_image(mapping->image_at, address - mapping->bias);
	case MAPPING_PENDING:
		return RULE(RULE_STOP, STOP_PENDING);
	case MAPPING_ANONYMOUS:
		return RULE(RULE_STOP, STOP_ANONYMOUS);
	default:
		return RULE_GAP;
	}
}

/* That no mapping holds an address says something only while the list is up to date. */
static __always_inline u32 rule_without_mapping(struct walk *walk)
{
	return RULE(RULE_STOP, walk->list_state.changing ? STOP_STALE : STOP_NO_MAPPING);
}

/*
 * Where the cache has the rule for an address, and the tag that it must have.
 *
 * A multiplication by an odd number permutes the 47-bit addresses. The product's high bits choose the slot
 * and the 32 below are the tag, so slot and tag name one address and no other. The bit between tag and rule
 * says that the rule holds only while its mapping does, which must be verified again.
 */
static __always_inline volatile u64 *cache_slot(u32 list, u64 address, u64 *tag)
{
	u64 mixed = address * 0x9e3779b97f4a7c15ULL & ((1ULL << ADDRESS_BITS) - 1);
	u32 slot = (list << CACHE_BITS | (u32)(mixed >> (ADDRESS_BITS - CACHE_BITS))) & cache_mask;
	u64 *cache = rule_cache;

	*tag = mixed & ((1ULL << (ADDRESS_BITS - CACHE_BITS)) - 1);
	OPAQUE(cache);
	return (volatile u64 *)&cache[slot];
}

/* Whether the rule for the frame at `pc` is the same for whoever comes there, as long as its mapping holds. */
static __always_inline bool is_cacheable(struct walk *walk, u32 rule)
{
	/* Where a walk began is believed; whoever comes there by a frame pointer must be behind a call. */
	if (rule_kind(rule) == RULE_CHAIN && walk->found_by == FOUND_BY_PROBE)
		return is_after_call(walk->pc);
	return rule_kind(rule) != RULE_STOP || rule_a(rule) < STOP_PENDING;
}

/* The rule for the frame at `pc`, from the cache if it is there. */
static __always_inline u32 lookup_rule(struct walk *walk)
{
	u64 address = walk->pc - walk->pc_adjust;
	u64 tag;
	volatile u64 *cached = cache_slot(walk->list, address, &tag);
	u64 entry = takes(walk_cache, walk) ? *cached : 0;
	u32 rule = entry & 0x7fffffff;
	u64 unsettled = entry >> 31 & 1;
	u64 misses = (entry >> 32 ^ tag) | address >> ADDRESS_BITS;

	if (!misses && rule && (!unsettled || is_verified(&walk->list_state, address)))
		return rule;

	struct mapping *mapping = find_mapping(walk->list, address);

	if (!mapping)
		return rule_without_mapping(walk);
	if (!is_current(&walk->list_state, mapping))
		return RULE(RULE_STOP, STOP_STALE);
	if (mapping->trust & TRUST_CHECKED) {
		leave_check(&walk->trail, &mapping->checks[0]);
		leave_check(&walk->trail, &mapping->checks[1]);
	}
	rule = find_rule(walk, mapping, address);
	unsettled = mapping->trust != TRUST_SETTLED;
	if (takes(walk_cache, walk) && is_cacheable(walk, rule))
		*cached = tag << 32 | unsettled << 31 | rule;
	return rule;
}

/* Stops that are not frames: the address is not one the stack is known to have. */
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

static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9fb21c651e98df25ULL;
	return hash ^ hash >> 29;
}

/* Whether the frame is what the kernel makes a signal handler return to. */
static __always_inline bool is_signal_frame(u32 rule)
{
	return rule_kind(rule) == RULE_WIDE && word(rule >> RULE_KIND_BITS) == OP_SIGNAL;
}

static __always_inline enum end_cause push_frame(struct walk *walk, u32 rule)
{
	u64 exact = walk->pc_adjust == 0 || is_signal_frame(rule);
	u64 frame = walk->pc | (u64)walk->found_by << FRAME_FOUND_BY_SHIFT | exact << FRAME_EXACT_SHIFT;
	u32 number = walk->frame_count;

	OPAQUE(number);
	if (number >= MAX_FRAMES)
		return END_DEPTH_LIMIT;
	walk->frames[number] = frame;
	walk->sps[number] = walk->sp;
	walk->fps[number] = walk->fp;
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
	forget_link(walk);
}

/* The caller's registers: its stack pointer is the CFA, the others are in slots (0: fp is the same). */
static __always_inline enum end_cause go_to_caller(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot)
{
	u64 ra, fp = walk->fp;

	if (cfa <= walk->sp)
		return END_NO_PROGRESS;
	if (fp_slot && !read_fp_slot(walk, fp_slot, &fp))
		return END_READ_FAULT;
	/* That one above can be read does not follow from the other. */
	if (fp_slot > ra_slot)
		use_fp(&walk->trail);
	if (!read_slot(walk, ra_slot, &ra))
		return END_READ_FAULT;
	go_to(walk, ra, cfa, fp);
	return END_NONE;
}

/* Where the plain rule of a frame says that its caller is: the equations of apply_offset and apply_fp. */
struct caller_slots {
	u64 cfa;
	u64 ra;
	/* Not above `ra`. */
	u64 fp;
	/* All bits, or none if the frame pointer is the same. */
	u64 has_fp;
};

#ifdef __TARGET_ARCH_arm64
static __always_inline enum end_cause apply_fp(struct walk *walk, enum end_cause implausible);

#include "walk/aarch64.h"
#else

static __always_inline enum end_cause apply_offset(struct walk *walk, u32 rule)
{
	u64 base = rule_kind(rule) == RULE_SP ? walk->sp : walk->fp;
	u64 cfa = base + 8 * rule_a(rule);
	u64 fp_slot = rule_b(rule) ? cfa - 8 * rule_b(rule) : 0;

	if (rule_kind(rule) != RULE_SP)
		use_fp(&walk->trail);
	return go_to_caller(walk, cfa, cfa - 8, fp_slot);
}

static __always_inline enum end_cause apply_plt(struct walk *walk, u32 rule)
{
	u64 pushed = (walk->pc & 15) >= rule_a(rule);
	u64 cfa = walk->sp + 8 + 8 * pushed;

	return go_to_caller(walk, cfa, cfa - 8, 0);
}

static __always_inline enum end_cause apply_drap(struct walk *walk, u32 rule)
{
	u64 cfa;

	use_fp(&walk->trail);
	if (!read_slot(walk, walk->fp + signed_slots(rule_a(rule), RULE_A_BITS), &cfa))
		return END_READ_FAULT;
	return go_to_caller(walk, cfa, cfa - 8, walk->fp + signed_slots(rule_b(rule), RULE_B_BITS));
}

#endif

/* Follows the frame pointer, or ends with `implausible` when it cannot be one. */
static __always_inline enum end_cause apply_fp(struct walk *walk, enum end_cause implausible)
{
	u64 fp = walk->fp;
	u64 caller_fp, ra;

	use_fp(&walk->trail);
	if (fp < walk->sp || fp % 8 || fp - walk->sp > MAX_FP_DISTANCE)
		return implausible;
	if (!read_fp_slot(walk, fp, &caller_fp) || !read_slot(walk, fp + 8, &ra))
		return implausible;
	ra = without_code(ra);
	if (!unwind_by_fp && !is_return_address(walk, ra))
		return implausible;
	walk->sp = fp + 16;
	walk->fp = caller_fp;
	walk->pc = ra;
	walk->pc_adjust = 1;
	walk->found_by = FOUND_BY_FP;
	forget_link(walk);
	return END_NONE;
}

static __always_inline enum end_cause apply_stop(struct walk *walk, u32 rule)
{
	switch (rule_a(rule)) {
	case STOP_END:
		return END_COMPLETE;
	case STOP_GAP:
		return apply_fp(walk, END_NO_CFI);
	case STOP_ANONYMOUS:
		return apply_fp(walk, END_ANONYMOUS_CODE);
	case STOP_PENDING:
		return END_TABLE_NOT_LOADED;
	default:
		return END_UNSUPPORTED_RULE;
	}
}

static __always_inline enum end_cause apply_rule(struct walk *walk, u32 rule)
{
	switch (rule_kind(rule)) {
#ifdef __TARGET_ARCH_arm64
	case RULE_SP:
	case RULE_FP:
	case RULE_LONE:
		return apply_record(walk, rule);
#else
	case RULE_SP:
	case RULE_FP:
		return apply_offset(walk, rule);
	case RULE_PLT:
		return apply_plt(walk, rule);
	case RULE_DRAP:
		return apply_drap(walk, rule);
#endif
	case RULE_WIDE:
		/* Without tables there are no programs: the verifier need not look at them. */
		return unwind_by_fp ? END_UNSUPPORTED_RULE : apply_program(walk, rule >> RULE_KIND_BITS);
	case RULE_CHAIN:
		return apply_fp(walk, END_FP_CHAIN_END);
	default:
		return apply_stop(walk, rule);
	}
}

/*
 * Puts back a return address that was replaced by a return probe's trampoline. The stack pointer that the function
 * began with is what the kernel knows it by.
 */
static __always_inline enum end_cause put_back_return_address(struct walk *walk)
{
	u64 address = sp_is_known(walk) ? replaced_return_address(walk->sp - RETURN_SLOT_BYTES) : 0;

	walk->trail.unrepeatable = true;
	if (!address || address == walk->pc)
		return END_URETPROBE_TRAMPOLINE;
	walk->pc = address;
	return END_NONE;
}

/* One frame: look up its rule, record it, go to its caller. */
static __always_inline enum end_cause step(struct walk *walk)
{
	u32 rule = lookup_rule(walk);
	enum end_cause end = end_without_frame(rule);

	if (end != END_NONE && is_trampoline(walk->pc))
		return put_back_return_address(walk);
	if (end == END_NONE)
		end = push_frame(walk, rule);
	if (end == END_NONE)
		end = apply_rule(walk, rule);
	return end;
}

/* Frames that the short way goes over at once. */
#define RUN_FRAMES 4

/* The cached rule for the code before a return address, if it says where the caller is without more ado; else 0. */
static __always_inline u32 plain_rule(u32 list, u64 pc)
{
	u64 tag;
	u64 entry = *cache_slot(list, pc - 1, &tag);
	u64 misses = (entry >> 32 ^ tag) | (pc - 1) >> ADDRESS_BITS | (entry >> 31 & 1);

	return misses ? RULE_NONE : entry & 0x7fffffff;
}

/* Whether `rule` is plain. */
static __always_inline bool find_caller(u32 rule, u64 sp, u64 fp, struct caller_slots *slots)
{
	if (unwind_by_fp) {
		slots->cfa = fp + 16;
		slots->ra = fp + 8;
		slots->fp = fp;
		slots->has_fp = ~0ULL;
		return rule_kind(rule) == RULE_CHAIN && fp >= sp && fp % 8 == 0 && fp - sp <= MAX_FP_DISTANCE;
	}

#ifdef __TARGET_ARCH_arm64
	return find_record(rule, sp, fp, slots);
#else
	u64 kind = (u64)rule_kind(rule) - RULE_SP;
	u64 from_fp = -kind;
	u64 saved = rule_b(rule);

	OPAQUE(from_fp);
	OPAQUE(saved);
	slots->cfa = sp + ((fp - sp) & from_fp) + 8 * rule_a(rule);
	slots->ra = slots->cfa - 8;
	slots->has_fp = (s64)-saved >> 63;
	slots->fp = slots->ra - ((8 * saved - 8) & slots->has_fp);
	return kind <= RULE_FP - RULE_SP && slots->cfa > sp;
#endif
}

/*
 * The short way: goes over frames as long as their rules are cached and plain, and the window holds what they need. What
 * a frame needs beyond that is left to `step`, from the same frame on. Returns whether there were as many as it takes.
 * `leaves_trail`: a constant.
 */
static __always_inline bool run(struct walk *walk, bool leaves_trail)
{
	u64 pc = walk->pc, sp = walk->sp, fp = walk->fp, hash = walk->hash;
	u64 found_by = walk->found_by;
	u64 start = walk->window_start, last = walk->window_bytes - 8;
	u32 list = walk->list, first = walk->frame_count, done;

	OPAQUE(first);
	if (!walk->pc_adjust || walk->window_bytes < 8 || first > MAX_FRAMES - RUN_FRAMES)
		return false;
	if (!plain_rules_apply(walk))
		return false;
#pragma unroll
	for (done = 0; done < RUN_FRAMES; done++) {
		/* No address in it is to be reckoned before its frame: they would take more stack than kernels give. */
		OPAQUE(walk);

		u32 rule = plain_rule(list, pc);
		struct caller_slots slots;

		if (!find_caller(rule, sp, fp, &slots) || slots.ra - start > last || slots.fp - start > last)
			break;

		u64 frame = pc | found_by << FRAME_FOUND_BY_SHIFT;
		u64 ra = window_word(walk, slots.ra - start);
		u64 caller_fp = window_word(walk, slots.fp - start);

		walk->frames[first + done] = frame;
		walk->sps[first + done] = sp;
		walk->fps[first + done] = fp;
		if (leaves_trail && (unwind_by_fp || rule_kind(rule) == RULE_FP))
			use_fp(&walk->trail);
		if (leaves_trail && slots.has_fp)
			leave_fp(&walk->trail, slots.fp, caller_fp);
		if (leaves_trail)
			leave_trail(&walk->trail, slots.ra, ra);
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
		forget_link(walk);
	return done == RUN_FRAMES;
}

static long step_until_end(u64 number, struct walk **context)
{
	struct walk *walk = *context;

	if (takes(walk_cache && walk_window, walk) &&
	    (walk_memo && walk->leaves_trail ? run(walk, true) : run(walk, false)))
		return 0;

	enum end_cause end = step(walk);

	if (end == END_NONE)
		return 0;
	walk->end = end;
	return 1;
}

/*
 * Makes ready for a walk from `pc` and the registers in `at_probe`. `changing`: a change of the mappings is announced
 * that the list does not have yet. What the window holds must be of now, or nothing.
 */
static __always_inline void begin_walk(struct walk *walk, u32 list, u64 changing, u64 pc)
{
	walk->pc = pc;
	walk->sp = walk->at_probe[REGISTER_SP];
	walk->fp = walk->at_probe[REGISTER_FP];
	walk->pc_adjust = 1;
	forget_link(walk);
	walk->list = list;
	walk->list_state.changing = changing;
	walk->list_state.verified_start = 0;
	walk->list_state.verified_end = 0;
	walk->found_by = FOUND_BY_PROBE;
	walk->frame_count = 0;
	walk->hash = 0;
	walk->saves_wanted = 0;
	walk->looks_left = MAX_LOOKS;
	walk->end = END_DEPTH_LIMIT;
	begin_trail(&walk->trail, walk->sp);
}

/*
 * Walks the stack. Afterwards frames, frame_count, hash, end, pc (where it ended), saves_wanted, stack_end and, if one was
 * to be left, trail are set.
 */
static __always_inline void walk_stack(struct walk *walk)
{
	if (takes(walk_window, walk) && !walk->window_bytes &&
	    !read_window(walk, walk->sp, window_to_end(walk, walk->sp)))
		walk->stack_end = 0;
	/* A step more for each frame to put its return address back, and one that finds the stack to be deeper. */
	bpf_loop(2 * MAX_FRAMES + 2, step_until_end, &walk, 0);
	if (walk->end == END_COMPLETE)
		walk->stack_end = walk->sp;
}

/* Whether all that a finished walk depended on is in its trail. Of other ends, the reason is elsewhere. */
static __always_inline bool is_repeatable(struct walk *walk)
{
	if (walk->trail.unrepeatable || !walk->trail.slot_count)
		return false;
	return walk->end == END_COMPLETE || walk->end == END_FP_CHAIN_END || walk->end == END_NO_CFI;
}
