/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Interpreter of rule programs, for rules that do not fit in 31 bits. Mirrors unwind-tables/src/walk/program.rs. Ops
 * are defined in unwind-tables/src/program.rs, whose checks bound a program's length and stack of operands.
 */
#pragma once

#include "kernel.h"
#include "walk/arch.h"
#include "walk/registers.h"
#include "walk/tables.h"

static __always_inline u64 *operand_at(struct program *program, u32 number)
{
	OPAQUE(number);
	return &program->operands[number & (MAX_OPERANDS - 1)];
}

static __always_inline u64 deref(struct walk *walk, u64 address, u32 bytes)
{
	u32 unread = (64 - 8 * bytes) & 63;
	u64 value = 0;

	if (!read_slot(walk, address, &value))
		walk->program.end = END_READ_FAULT;
	return value << unread >> unread;
}

/* Returns y OP x, for ops with two operands. */
static __always_inline u64 binary(u32 code, u64 y, u64 x)
{
	switch (code) {
	case OP_AND:
		return y & x;
	case OP_OR:
		return y | x;
	case OP_XOR:
		return y ^ x;
	case OP_PLUS:
		return y + x;
	case OP_MINUS:
		return y - x;
	case OP_MULTIPLY:
		return y * x;
	case OP_SHIFT_LEFT:
		return x < 64 ? y << (x & 63) : 0;
	case OP_SHIFT_RIGHT:
		return x < 64 ? y >> (x & 63) : 0;
	case OP_SHIFT_ARITHMETIC:
		return (s64)y >> (x < 64 ? x & 63 : 63);
	case OP_EQUAL:
		return y == x;
	case OP_NOT_EQUAL:
		return y != x;
	case OP_LESS:
		return (s64)y < (s64)x;
	case OP_LESS_EQUAL:
		return (s64)y <= (s64)x;
	case OP_GREATER:
		return (s64)y > (s64)x;
	default:
		return (s64)y >= (s64)x;
	}
}

/* Runs one op. Returns whether the program goes on. Not static: verified once, by itself. */
__noinline bool run_op(struct fast_walk *fast)
{
	if (!fast)
		return false;

	struct walk *walk = walk_of(fast);
	struct program *program = &walk->program;
	u32 at = program->at;
	u32 first = word(at);
	u64 immediate = (s64)(s32)word(at + 1);
	u32 operand = first >> OPCODE_BITS;
	u32 code = first & ((1 << OPCODE_BITS) - 1);
	u32 depth = program->depth;
	u64 x = *operand_at(program, depth - 1);
	u64 y = *operand_at(program, depth - 2);
	u64 top = y;
	/*
	 * Each case sets the new top of the stack and the change of its depth. The defaults, y and -1, are right for
	 * ops that consume x and push nothing, the preset -1 for ops that replace x and y by one result.
	 */
	s32 change = -1;

	program->at = at + OP_WORDS;
	switch (code) {
	case OP_END:
		return false;
	case OP_SIGNAL:
		program->is_signal_frame = true;
		top = x;
		change = 0;
		break;
	case OP_REGISTER:
		top = register_value(walk, operand) + immediate;
		change = 1;
		break;
	case OP_CFA:
		top = program->cfa + immediate;
		change = 1;
		break;
	case OP_CONSTANT:
		top = immediate;
		change = 1;
		break;
	case OP_HIGH:
		top = (u32)x | immediate << 32;
		change = 0;
		break;
	case OP_DEREF:
		top = deref(walk, x, operand);
		change = 0;
		break;
	case OP_ADD:
		top = x + immediate;
		change = 0;
		break;
	case OP_PICK:
		top = *operand_at(program, depth - 1 - operand);
		change = 1;
		break;
	case OP_DROP:
		break;
	case OP_SWAP:
		*operand_at(program, depth - 2) = x;
		change = 0;
		break;
	case OP_ROTATE:
		*operand_at(program, depth - 2) = *operand_at(program, depth - 3);
		*operand_at(program, depth - 3) = x;
		change = 0;
		break;
	case OP_ABSOLUTE:
		top = (s64)x < 0 ? -x : x;
		change = 0;
		break;
	case OP_NEGATE:
		top = -x;
		change = 0;
		break;
	case OP_NOT:
		top = ~x;
		change = 0;
		break;
	case OP_SET_CFA:
		program->cfa = x;
		break;
	case OP_SET_RA:
		program->ra = x;
		break;
	case OP_SET_FP:
		program->fp = x;
		break;
	case OP_SET_SP:
		program->sp = x;
		program->sp_is_set = true;
		break;
	default:
		if (!set_link(&program->link, code, x))
			top = binary(code, y, x);
		break;
	}
	depth += change;
	*operand_at(program, depth - 1) = top;
	program->depth = depth;
	return program->end == END_NONE;
}

/* Goes to the caller by the program that starts at word `at`. */
static __always_inline enum end_cause apply_program(struct walk *walk, u32 at)
{
	struct program *program = &walk->program;

	program->at = at;
	program->depth = 0;
	program->end = END_NONE;
	program->is_signal_frame = false;
	program->sp_is_set = false;
	forget_link(&program->link);
	program->fp = walk->fp;
	for (u32 op = 0; op < MAX_OPS; op++)
		if (!run_op(fast_of(walk)))
			break;
	if (program->end != END_NONE)
		return program->end;

	u64 sp = program->sp_is_set ? program->sp : program->cfa;

	/*
	 * Equal stack pointers are progress: a callee whose return address is in a register need not use the stack. The
	 * frame that a signal interrupted can be on another stack, so its stack pointer can have any value.
	 */
	if (sp < walk->sp && !program->is_signal_frame && !may_switch_stack(walk))
		return END_NO_PROGRESS;
	go_to(walk, program->ra, sp, program->fp);
	walk->pc_adjust = !program->is_signal_frame;
	if (program->is_signal_frame)
		know_link(&walk->link, program->link);
	return END_NONE;
}
