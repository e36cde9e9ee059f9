/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Numbers of the table image and of packed rules, which unwind-tables/src/image.rs and packed.rs define and explain.
 * src/bpf/layout.rs fails the build if a number differs.
 */
#pragma once

#include "shared.h"

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
	IMAGE_SAVES_AT = 13,
};

enum image_shape {
	BLOCK_SHIFT = 8,
	RULE_NUMBER_ESCAPE = 255,
	/* An object has at most 2^24 rows. */
	ROW_BITS = 24,
};

/* Kinds of a packed rule. */
enum rule_kind {
	RULE_NONE = 0,
	RULE_SP = 1,
	RULE_FP = 2,
	RULE_PLT = 3,
	/* AArch64 only, which has neither RULE_PLT nor RULE_DRAP. */
	RULE_LONE = 3,
	RULE_DRAP = 4,
	RULE_WIDE = 5,
	RULE_STOP = 6,
	RULE_CHAIN = 7,
};

enum rule_shape {
	RULE_KIND_BITS = 3,
	RULE_A_BITS = 17,
	RULE_B_BITS = 11,
	/* AArch64, in the second operand: the return address has a pointer authentication code (PAC). */
	RECORD_SIGNED = 1 << 10,
	/* In the second operand of a gap's stop rule: the frame pointer is the function's own. */
	GAP_FRAMED = 1,
};

/* First operand of a stop rule. Values from STOP_ANONYMOUS on come from the mapping, not from a table. */
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
	STOP_ANONYMOUS_LINKED = 38,
	STOP_ANONYMOUS_METHODS = 39,
	STOP_ANONYMOUS_STUB = 40,
	STOP_NO_TABLE = 41,
	STOP_ANONYMOUS_PUSHED = 42,
};

/* Ops of a rule program; the operand is in the bits above the opcode, the immediate in the next word. */
enum opcode {
	OP_END = 0,
	OP_SIGNAL = 1,
	OP_REGISTER = 2,
	OP_CFA = 3,
	OP_CONSTANT = 4,
	OP_HIGH = 5,
	OP_DEREF = 6,
	OP_ADD = 7,
	OP_PICK = 8,
	OP_DROP = 9,
	OP_SWAP = 10,
	OP_ROTATE = 11,
	OP_ABSOLUTE = 12,
	OP_NEGATE = 13,
	OP_NOT = 14,
	OP_AND = 15,
	OP_OR = 16,
	OP_XOR = 17,
	OP_PLUS = 18,
	OP_MINUS = 19,
	OP_MULTIPLY = 20,
	OP_SHIFT_LEFT = 21,
	OP_SHIFT_RIGHT = 22,
	OP_SHIFT_ARITHMETIC = 23,
	OP_EQUAL = 24,
	OP_NOT_EQUAL = 25,
	OP_LESS = 26,
	OP_LESS_EQUAL = 27,
	OP_GREATER = 28,
	OP_GREATER_EQUAL = 29,
	OP_SET_CFA = 30,
	OP_SET_RA = 31,
	OP_SET_FP = 32,
	OP_SET_SP = 33,
	OP_SET_LR = 34,
};

enum program_shape {
	OP_WORDS = 2,
	OPCODE_BITS = 8,
	/* Maximum number of ops of a program. */
	MAX_OPS = 64,
	/* Maximum number of operands on a program's stack; a power of two. */
	MAX_OPERANDS = 8,
};

/* Registers by their x86-64 DWARF numbers; those of AArch64 have the numbers of their counterparts. */
enum register_number {
	REGISTER_RBX = 3,
	REGISTER_FP = 6,
	REGISTER_SP = 7,
	/* AArch64 only. */
	REGISTER_LR = 8,
	REGISTER_R11 = 11,
	REGISTER_R12 = 12,
	REGISTERS = 16,
	REGISTER_PC = 16,
};

/* Location of a register of a frame's caller, in a long entry of an image of saves. */
enum saved_kind {
	SAVED_SAME = 0,
	SAVED_UNKNOWN = 1,
	SAVED_AT_CFA = 2,
	SAVED_AT_SP = 3,
	SAVED_AT_FP = 4,
};

enum saves_shape {
	SAVED_KIND_BITS = 3,
	SAVES_FIELD_BITS = 5,
	SAVES_FIELD_UNKNOWN = 31,
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

/* Returns a sign-extended operand times the size of a stack slot (8). */
static __always_inline s64 signed_slots(u32 operand, u32 bits)
{
	return (s64)((u64)operand << (64 - bits)) >> (64 - bits - 3);
}
