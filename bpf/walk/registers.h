/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Finds the value of a register other than rsp and rbp in the current frame of a walk. Mirrors
 * unwind-tables/src/walk/registers.rs.
 *
 * From the current frame back towards the probe, the nearest frame that saved the register has its value; if none did,
 * it is unchanged since the probe. A walk inspects at most MAX_LOOKS frames in total, and none that is not kept; there,
 * it ends.
 */
#pragma once

#include "kernel.h"
#include "walk/kept_frames.h"
#include "walk/mappings.h"
#include "walk/tables.h"

/* Returns a field of a short rule of saves in the form of a long entry's word. */
static __always_inline u32 short_saved(u32 rule, u32 number)
{
	u32 place = number == REGISTER_RBX ? 0 : number - REGISTER_R11;

	/* Checked before `place` is used: only rbx and r12 to r15 have a field. */
	if (number != REGISTER_RBX && number < REGISTER_R12)
		return SAVED_UNKNOWN;

	u32 field = rule >> (RULE_KIND_BITS + SAVES_FIELD_BITS * place) & SAVES_FIELD_UNKNOWN;

	if (field == SAVES_FIELD_UNKNOWN)
		return SAVED_UNKNOWN;
	return field ? SAVED_AT_CFA | (u32)(-8 * (s32)field) << SAVED_KIND_BITS : SAVED_SAME;
}

/* Returns how the function at `address` saves the wanted register, as a long entry's word. */
static __always_inline u32 saved_word(struct walk *walk, u64 address)
{
	struct mapping *mapping = find_mapping(walk->list, address);

	if (!mapping || mapping->kind != MAPPING_TABLE)
		return SAVED_UNKNOWN;
	if (!word(mapping->image_at + IMAGE_SAVES_AT)) {
		walk->saves_wanted = address;
		return SAVED_UNKNOWN;
	}

	u32 rule = rule_in_image(section(mapping->image_at, IMAGE_SAVES_AT), address - mapping->bias);

	/* Makes the compiler reload `found` below: a value kept across the search in the image would take BPF stack. */
	OPAQUE(walk);

	u32 number = walk->found;

	switch (rule_kind(rule)) {
	case RULE_SP:
		return short_saved(rule, number);
	case RULE_WIDE:
		return word((rule >> RULE_KIND_BITS) + number);
	default:
		return SAVED_UNKNOWN;
	}
}

/* Inspects one frame. Returns whether the search goes on. Not static: verified once, by itself. */
__noinline bool look_in_frame(struct fast_walk *fast, u32 step)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	/*
	 * `found` is the register's number until a value replaces it, in the step that ends the search with END_NONE.
	 */
	u32 number = walk->found;
	/* The current frame is frame_count - 1: step 0 inspects its callee, each further step the next inner frame. */
	u32 callee = walk->frame_count - 2 - step;

	walk->program.end = END_NONE;
	if (step + 2 > walk->frame_count) {
		depend_on_more(walk);
		OPAQUE(number);
		walk->found = walk->at_probe[number & (REGISTERS - 1)];
		return false;
	}
	OPAQUE(callee);
	walk->program.end = END_UNSUPPORTED_RULE;
	/* The innermost one of the outermost frames has a callee that is not kept. */
	if (!walk->looks_left || (has_left_out(walk) && step >= OUTERMOST_FRAMES - 1)) {
		walk->program.end = END_LOOK_LIMIT;
		return false;
	}
	walk->looks_left--;

	u64 frame = walk->frames[place_of_frame(callee)];
	u64 caller = walk->frames[place_of_frame(callee + 1)];

	if (is_found_by_fp(caller >> FRAME_FOUND_BY_SHIFT & 0x7f))
		return false;

	u32 saved = saved_word(walk, (frame << 8 >> 8) - !(frame >> FRAME_EXACT_SHIFT));
	/*
	 * Hidden so that frames are indexed by number: pointers into each array would be kept on the stack across the
	 * search.
	 */
	OPAQUE(callee);

	s64 offset = (s32)saved >> SAVED_KIND_BITS;
	u64 base;

	switch (saved & ((1 << SAVED_KIND_BITS) - 1)) {
	case SAVED_SAME:
		return true;
	case SAVED_AT_CFA:
		base = walk->sps[place_of_frame(callee + 1)];
		break;
	case SAVED_AT_SP:
		base = walk->sps[place_of_frame(callee)];
		break;
	case SAVED_AT_FP:
		depend_on_more(walk);
		base = walk->fps[place_of_frame(callee)];
		break;
	default:
		if (walk->saves_wanted)
			walk->program.end = END_TABLE_NOT_LOADED;
		return false;
	}
	walk->program.end = read_slot(walk, base + offset, &walk->found) ? END_NONE : END_READ_FAULT;
	return false;
}

static __always_inline u64 find_register(struct walk *walk, u32 number)
{
	/* One field for number and value. It is a value only if program.end is END_NONE. */
	walk->found = number;
	for (u32 step = 0; step < MAX_FRAMES; step++)
		if (!look_in_frame(fast_of(walk), step))
			break;
	return walk->found;
}
