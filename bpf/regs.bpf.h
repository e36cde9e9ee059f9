/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The target's registers at a probe. The only place that knows the architecture's calling convention. */
#pragma once

/* As the kernel's arch/x86/include/asm/ptrace.h; its order is ABI. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

/* Argument `number`, 1-based, at a function's entry; 0 for argument 0. */
static __always_inline u64 argument(struct pt_regs *ctx, u32 number)
{
	u64 first = ctx->di, second = ctx->si, third = ctx->dx;
	u64 fourth = ctx->cx, fifth = ctx->r8, sixth = ctx->r9;

	/* Or the compiler loads from a chosen address in ctx, which the verifier forbids. */
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

/* Argument `number` of a system call, 0-based, at its entry and at its end. */
static __always_inline u64 syscall_argument(struct pt_regs *regs, u32 number)
{
	switch (number) {
	case 0:
		return regs->di;
	case 1:
		return regs->si;
	case 2:
		return regs->dx;
	case 3:
		return regs->r10;
	case 4:
		return regs->r8;
	default:
		return 0;
	}
}

static __always_inline u64 result(struct pt_regs *ctx)
{
	return ctx->ax;
}

/* The slot of the return address, at a function's entry. */
static __always_inline u64 return_slot(struct pt_regs *ctx)
{
	return ctx->sp;
}

/* The same slot, when the function has just returned. */
static __always_inline u64 returned_slot(struct pt_regs *ctx)
{
	return ctx->sp - 8;
}

static __always_inline u64 frame_pointer(struct pt_regs *ctx)
{
	return ctx->bp;
}

/* The general registers but stack and frame pointer, by their DWARF numbers (x86-64 psABI, figure 3.36). */
static __always_inline void save_other_registers(struct pt_regs *ctx, u64 *general)
{
	general[0] = ctx->ax;
	general[1] = ctx->dx;
	general[2] = ctx->cx;
	general[3] = ctx->bx;
	general[4] = ctx->si;
	general[5] = ctx->di;
	general[8] = ctx->r8;
	general[9] = ctx->r9;
	general[10] = ctx->r10;
	general[11] = ctx->r11;
	general[12] = ctx->r12;
	general[13] = ctx->r13;
	general[14] = ctx->r14;
	general[15] = ctx->r15;
}
