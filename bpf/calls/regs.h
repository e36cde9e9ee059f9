/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Arguments and results of functions, from the registers at a probe. */
#pragma once

#include "seam.h"
#include "walk/arch.h"

/* Returns argument `number`, 1-based, at a function's entry; 0 for number 0. */
static __always_inline u64 argument(struct pt_regs *ctx, u32 number)
{
	u64 first = ctx->ARGUMENT_1, second = ctx->ARGUMENT_2, third = ctx->ARGUMENT_3;
	u64 fourth = ctx->ARGUMENT_4, fifth = ctx->ARGUMENT_5, sixth = ctx->ARGUMENT_6;

	/* Keeps the compiler from loading at a variable offset in ctx, which the verifier forbids. */
	OPAQUE(first);
	OPAQUE(second);
	OPAQUE(third);
	OPAQUE(fourth);
	OPAQUE(fifth);
	OPAQUE(sixth);
	switch (number) {
	case 1:
		return first;
	case 2:
		return second;
	case 3:
		return third;
	case 4:
		return fourth;
	case 5:
		return fifth;
	case 6:
		return sixth;
	default:
		return 0;
	}
}

/* Returns argument `number`, 0-based, of a system call, at its entry or exit. */
static __always_inline u64 syscall_argument(struct pt_regs *regs, u32 number)
{
	switch (number) {
	case 0:
		return regs->SYSCALL_ARGUMENT_0;
	case 1:
		return regs->SYSCALL_ARGUMENT_1;
	case 2:
		return regs->SYSCALL_ARGUMENT_2;
	case 3:
		return regs->SYSCALL_ARGUMENT_3;
	case 4:
		return regs->SYSCALL_ARGUMENT_4;
	default:
		return 0;
	}
}

static __always_inline u64 result(struct pt_regs *ctx)
{
	return ctx->RESULT;
}

static __always_inline u64 program_counter(struct pt_regs *ctx)
{
	return ctx->PROGRAM_COUNTER;
}

static __always_inline u64 frame_pointer(struct pt_regs *ctx)
{
	return ctx->FRAME_POINTER;
}
