/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decides whether the frame pointer of code without CFI is that code's own or a caller's. Mirrors
 * unwind-tables/src/walk/own_frame.rs, which explains how.
 */
#pragma once

#include "kernel.h"
#include "walk/arch.h"
#include "walk/mappings.h"
#include "walk/return_probes.h"
#include "walk/returns.h"
#include "walk/tables.h"

/*
 * Returns the 8 code bytes before a return address; 0, which is no call, if they cannot be read. Not static: verified
 * once, by itself.
 */
__noinline u64 code_before(u64 ra)
{
	u64 code;

	return bpf_probe_read_user(&code, 8, (void *)(ra - 8)) ? 0 : code;
}

/*
 * Returns the function that a call of `address` reaches, through up to two jumps. Not static: verified once, by itself.
 */
__noinline u64 behind_jumps(u64 address)
{
	return behind_jump(behind_jump(address));
}

/* Returns whether `mapping` holds all from `address` to `at` as one piece of code without CFI. */
static __always_inline bool is_one_piece(struct mapping *mapping, u64 address, u64 at)
{
	if (address < mapping->start || address > at)
		return false;
	return mapping->kind != MAPPING_TABLE ||
	       row_in_image(mapping->image_at, address - mapping->bias) == row_in_image(mapping->image_at, at - mapping->bias);
}

/*
 * Returns the AVMA of the function that is called directly before the return address to which the frame pointer leads:
 * the frame's own function, if the frame pointer is its own. 0 if that is unknown, or if the frame's code cannot be in
 * that function. Not static: verified once, by itself.
 */
__noinline u64 entry_by_frame_pointer(struct fast_walk *fast)
{
	if (!fast)
		return 0;

	struct walk *walk = walk_of(fast);
	u64 at = walk->pc - walk->pc_adjust;
	struct mapping *here = find_mapping(walk->list, at);
	u64 ra, target;

	if (!here || !peek_slot(walk, walk->fp + 8, &ra))
		return 0;
	ra = without_code(ra);
	target = called_directly(ra, code_before(ra));
	if (!target)
		return 0;
	target = behind_jumps(target);
	return is_one_piece(here, target, at) ? target : 0;
}

/*
 * Returns whether the function that contains the call before `ra` can have a frame below the one to which the frame
 * pointer leads, or be that frame. Decided by its CFI if that takes the CFA from the stack pointer, which was behind
 * `slot`; else true.
 */
static __always_inline bool fits_below_frame_pointer(struct walk *walk, u64 slot, u64 ra)
{
	struct mapping *mapping = find_mapping(walk->list, ra - 1);
	u64 cfa, caller;
	u32 rule;

	if (!mapping || mapping->kind != MAPPING_TABLE)
		return true;
	rule = rule_in_image(mapping->image_at, ra - 1 - mapping->bias);
	if (RETURN_SLOT_BYTES == 0 || rule_kind(rule) != RULE_SP)
		return true;
	cfa = slot + 8 + 8 * rule_a(rule);
	if (cfa > walk->fp)
		return cfa == walk->fp + 16;
	return !peek_slot(walk, cfa - 8, &caller) || is_trampoline(caller) || is_after_call(caller);
}

/*
 * Returns whether the function at `entry`, which is not the frame's, may tail-call the frame's function: whether there
 * may be such a jump in its first JUMPS_LOOKED_FOR bytes. Not static: verified once, by itself.
 */
__noinline bool may_jump_here(struct fast_walk *fast, u64 entry)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	u64 at = walk->pc - walk->pc_adjust;
	struct mapping *here = find_mapping(walk->list, at);
	u64 code = 0;

	if (!here || bpf_probe_read_user(walk->code, sizeof(walk->code), (void *)entry))
		return true;
	for (u32 byte = 0; byte < sizeof(code); byte++)
		code |= (u64)walk->code[byte] << (8 * byte);
	for (u32 byte = 0; byte < JUMPS_LOOKED_FOR; byte++) {
		if (may_be_jump(code, entry + byte, entry, here->start, at))
			return true;
		code = code >> 8 | (u64)walk->code[byte + sizeof(code)] << 56;
	}
	return false;
}

/*
 * Returns whether the call before `ra` may reach the function that the frame's code is in. True if it is not a direct
 * call. Not static: verified once, by itself.
 */
__noinline bool may_call_frame(struct fast_walk *fast, u64 ra)
{
	if (!fast)
		return true;

	struct walk *walk = walk_of(fast);
	u64 at = walk->pc - walk->pc_adjust;
	u64 target = called_directly(ra, code_before(ra));
	struct mapping *here;

	if (!target || is_trampoline(ra))
		return true;
	target = behind_jumps(target);
	if (walk->entry)
		return target > walk->entry && target <= at;
	here = find_mapping(walk->list, at);
	return !here || is_one_piece(here, target, at) || may_jump_here(fast, target);
}

/*
 * Returns whether `ra`, which is in `slot`, is behind a call, and the function that contains the call can have a frame
 * there. Not static: verified once, by itself.
 */
__noinline bool may_return_to(struct fast_walk *fast, u64 slot, u64 ra)
{
	if (!fast)
		return true;

	struct walk *walk = walk_of(fast);
	u64 code;

	/* On AArch64 it is not needed, and compilers would leave the argument unset, which the verifier refuses. */
	OPAQUE(slot);
	if (is_trampoline(ra))
		return true;
	if (!find_mapping(walk->list, ra - 1) && !walk->list_state.changing)
		return false;
	code = code_before(ra);
	return is_aligned(ra) && ends_in_call(code) && !ends_in_local_call(code) && fits_below_frame_pointer(walk, slot, ra);
}

/*
 * Returns whether a slot holds, or may hold, the return address of a frame: any address of code, including code newer
 * than the mappings, except an address that a call within a frame pushed.
 */
static __always_inline bool may_hold_return_address(struct walk *walk, u64 slot)
{
	u64 ra, code;

	if (!peek_slot(walk, slot, &ra))
		return true;
	ra = without_code(ra);
	code = code_before(ra);
	if (ends_in_local_call(code))
		return false;
	return find_mapping(walk->list, ra - 1) || (is_aligned(ra) && ends_in_call(code));
}

/*
 * Looks for a pair at one slot of the frame. Returns whether the search goes on: false at its end, or if the frame ends
 * before its frame pointer. Not static: verified once, by itself.
 */
__noinline bool look_at_slot_of_frame(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	u64 slot = walk->looked_at;

	if (slot >= walk->look_until)
		return false;
	if (!peek_slot(walk, slot, &walk->in_slot) ||
	    (walk->look_for & LOOK_FOR_PAIR && walk->in_slot == walk->fp && may_hold_return_address(walk, slot + 8))) {
		walk->looked_at = 0;
		return false;
	}
	walk->looked_at = slot + 8;
	return true;
}

/* Checks whether the slot that was looked at last may hold a return address of the frame. */
static __always_inline void look_for_caller(struct walk *walk)
{
	u64 ra = without_code(walk->in_slot);

	if (walk->look_for & LOOK_FOR_CALLER && !walk->is_doubtful)
		walk->is_doubtful = may_return_to(fast_of(walk), walk->looked_at - 8, ra) && may_call_frame(fast_of(walk), ra);
}

/* Looks at up to LOOP_PART slots. Returns whether the search goes on. */
__noinline bool look_at_slots(struct fast_walk *fast)
{
	if (!fast)
		return false;
	for (u32 number = 0; number < LOOP_PART; number++) {
		if (!look_at_slot_of_frame(fast))
			return false;
		look_for_caller(walk_of(fast));
	}
	return true;
}

/*
 * Looks for a return in the part of the frame's code that begins `bytes` behind `pc`. Not static: verified once, by
 * itself.
 */
__noinline u32 returns_in_part(struct fast_walk *fast, u32 bytes)
{
	if (!fast)
		return RETURNS_OTHERWISE;

	struct walk *walk = walk_of(fast);
	u64 start = walk->pc + bytes;
	u64 code = 0;

	if (bpf_probe_read_user(walk->code, sizeof(walk->code), (void *)start))
		return RETURNS_OTHERWISE;
	for (u32 byte = 0; byte < sizeof(walk->code); byte++) {
		code = code >> 8 | (u64)walk->code[byte] << 56;
		/* These bytes were in the part before, together with those before them. */
		if (bytes && byte < sizeof(code))
			continue;

		u32 how = how_it_returns(code, start + byte + 1);

		if (how != RETURNS_LATER)
			return how;
	}
	return RETURNS_LATER;
}

/*
 * Returns how the frame's function returns; as by the frame pointer, if it uses that as the base of its frame before.
 * Parts overlap by the bytes of a return.
 */
static __always_inline u32 how_frame_returns(struct walk *walk)
{
	u32 how = RETURNS_LATER;
	u64 code, behind_seven;

	if (bpf_probe_read_user(&code, 8, (void *)walk->pc) == 0 &&
	    bpf_probe_read_user(&behind_seven, 8, (void *)(walk->pc + 7)) == 0 && uses_own_frame(code, behind_seven))
		return RETURNS_BY_FP;
	for (u32 part = 0; part < RETURN_LOOKED_FOR / JUMPS_LOOKED_FOR && how == RETURNS_LATER; part++)
		how = returns_in_part(fast_of(walk), part * JUMPS_LOOKED_FOR);
	return how;
}

/*
 * Returns whether the frame's slots were seen up to its frame pointer. Not static: verified once, by itself.
 *
 * The return address of a seemingly skipped frame can be left over from an earlier call: a function that restores the
 * frame pointer last has pushed it first, next to its return address, and the slots have no such pair.
 */
__noinline bool has_seen_frame(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);

	if (walk->looked_at < walk->look_until)
		return false;
	if (walk->is_doubtful && walk->pc_adjust) {
		u32 how = how_frame_returns(walk);

		walk->is_doubtful = how != RETURNS_WITH_FP && how != RETURNS_BY_FP;
	}
	return true;
}

/*
 * Returns whether the frame pointer is the frame's own because its function returns by it: a pair in the slots is left
 * over from an earlier call. Not static: verified once, by itself.
 */
__noinline bool returns_by_frame_pointer(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);

	return walk->pc_adjust && how_frame_returns(walk) == RETURNS_BY_FP;
}

/*
 * Searches the slots of the frame as begin_look has set it up. Returns false if the frame ends before its frame
 * pointer.
 */
static __always_inline bool look_at_frame(struct walk *walk)
{
	for (u32 number = 0; number < LOOP_PARTS(MAX_FRAME_SLOTS); number++)
		if (!look_at_slots(fast_of(walk)))
			break;
	return has_seen_frame(fast_of(walk));
}

/* Sets up a search for `look_for` (enum look_for) from `sp` to `end`, at most MAX_FRAME_SLOTS slots. */
static __always_inline void begin_look(struct walk *walk, u64 sp, u64 end, u32 look_for)
{
	walk->looked_at = sp;
	walk->look_until = end;
	walk->look_for = look_for;
	if (look_for & LOOK_FOR_CALLER)
		walk->entry = entry_by_frame_pointer(fast_of(walk));
}

/* Sets up the search that tells whether the frame pointer of native code without CFI may be another frame's. Returns
 * false if none is needed. Not static: verified once, by itself. */
__noinline bool begin_judgement(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	u64 sp = (walk->sp + 7) & ~7ULL;
	u64 fp = walk->fp;

	depend_on_more(walk);
	/* Such a frame pointer is not followed. */
	if (fp < sp || fp % 8)
		return false;
	/* Interrupted code can have its return address in the link register, where there is one. */
	if ((RETURN_SLOT_BYTES == 0 && !walk->pc_adjust) || (fp - sp) / 8 > MAX_FRAME_SLOTS) {
		walk->is_doubtful = true;
		return false;
	}
	begin_look(walk, sp, fp, LOOK_FOR_PAIR | LOOK_FOR_CALLER);
	return true;
}

/* Sets `is_doubtful` if the frame pointer of native code without CFI may be another frame's. */
static __always_inline void judge_frame_pointer(struct walk *walk)
{
	if (begin_judgement(fast_of(walk)) && !look_at_frame(walk))
		walk->is_doubtful = !returns_by_frame_pointer(fast_of(walk));
}
