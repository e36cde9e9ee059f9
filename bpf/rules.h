/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The table image and packed rules, as unwind-tables/src/image.rs and packed.rs define and explain them.
 * src/bpf/layout.rs states that each number here equals the one there, or the build fails.
 */
#pragma once

/* Word numbers in an image's header. */
enum image_header {
	IMAGE_FIRST_BLOCK = 1,
	IMAGE_BLOCK_COUNT = 2,
	IMAGE_INDEX_AT = 3,
	IMAGE_ROWS_AT = 4,
	IMAGE_RULES_AT = 6,
	IMAGE_ESCAPES_AT = 8,
	IMAGE_ESCAPE_COUNT = 9,
	IMAGE_WIDE_AT = 10,
};

enum image_shape {
	BLOCK_SHIFT = 8,
	RULE_NUMBER_ESCAPE = 255,
	WIDE_WORDS = 6,
	/* An object has at most 2^24 rows. */
	ROW_BITS = 24,
};

/* Kinds of a packed rule. */
enum rule_kind {
	RULE_NONE = 0,
	RULE_SP = 1,
	RULE_FP = 2,
	RULE_PLT = 3,
	RULE_DRAP = 4,
	RULE_WIDE = 5,
	RULE_STOP = 6,
	RULE_CHAIN = 7,
};

enum rule_shape {
	RULE_KIND_BITS = 3,
	RULE_A_BITS = 17,
	RULE_B_BITS = 11,
};

/* First operand of a stop rule. Those from STOP_ANONYMOUS on come from the mapping, not from a table. */
enum stop_operand {
	STOP_END = 0,
	STOP_GAP = 1,
	STOP_UNSUPPORTED = 2,
	STOP_ANONYMOUS = 32,
	STOP_PENDING = 33,
	STOP_NO_MAPPING = 34,
	STOP_TRAMPOLINE = 35,
	STOP_NOT_CALLED = 36,
	STOP_STALE = 37,
};

/* Bits of a wide rule's first word. */
enum wide_flag {
	WIDE_CFA_FROM_FP = 1 << 0,
	WIDE_CFA_DEREF = 1 << 1,
	WIDE_RA_AT_REGISTER = 1 << 2,
	WIDE_RA_FROM_FP = 1 << 3,
	WIDE_FP_SAVED = 1 << 4,
	WIDE_FP_AT_REGISTER = 1 << 5,
	WIDE_FP_FROM_FP = 1 << 6,
	WIDE_SIGNAL_FRAME = 1 << 7,
};

#define RULE(kind, a) ((u32)(kind) | (u32)(a) << RULE_KIND_BITS)
#define RULE_GAP RULE(RULE_STOP, STOP_GAP)

static __always_inline u32 rule_kind(u32 rule)
{
	return rule & ((1 << RULE_KIND_BITS) - 1);
}

static __always_inline u32 rule_a(u32 rule)
{
	return rule >> RULE_KIND_BITS & ((1 << RULE_A_BITS) - 1);
}

static __always_inline u32 rule_b(u32 rule)
{
	return rule >> (RULE_KIND_BITS + RULE_A_BITS) & ((1 << RULE_B_BITS) - 1);
}

/* An operand with its sign, times the size of a stack slot. */
static __always_inline s64 signed_slots(u32 operand, u32 bits)
{
	return (s64)((u64)operand << (64 - bits)) >> (64 - bits - 3);
}
