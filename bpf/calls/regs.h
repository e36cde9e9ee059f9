/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The target's registers at a probe. The only place that knows the architecture's calling convention, but for what
 * becomes of return addresses: that is calls/return_address.h.
 */
#pragma once

#ifdef __TARGET_ARCH_arm64

struct link {
	u64 lr;
	u64 known;
};

/* As the kernel's arch/arm64/include/asm/ptrace.h, as far as it is needed; what is before `orig_x0` is ABI. */
struct pt_regs {
	unsigned long regs[31], sp, pc, pstate;
	unsigned long orig_x0;
};

/* AAPCS64, 6.8.2: arguments in x0 to x7; the result in x0. */
#define ARGUMENT_1 regs[0]
#define ARGUMENT_2 regs[1]
#define ARGUMENT_3 regs[2]
#define ARGUMENT_4 regs[3]
#define ARGUMENT_5 regs[4]
#define ARGUMENT_6 regs[5]
#define RESULT regs[0]
#define FRAME_POINTER regs[29]
#define PROGRAM_COUNTER pc
/* A system call's result overwrites its first argument: the kernel keeps that. */
#define SYSCALL_ARGUMENT_0 orig_x0
#define SYSCALL_ARGUMENT_1 regs[1]
#define SYSCALL_ARGUMENT_2 regs[2]
#define SYSCALL_ARGUMENT_3 regs[3]
#define SYSCALL_ARGUMENT_4 regs[4]

/* What the link register holds in what was running when it came to the probe or made a system call. */
static __always_inline struct link link_of(struct pt_regs *ctx)
{
	return (struct link){ .lr = ctx->regs[30], .known = true };
}

/* None but stack pointer, frame pointer and link register is ever asked for: see walk/registers.h. */
static __always_inline void save_other_registers(struct pt_regs *ctx, u64 *general)
{
}

#else

struct link {
};

/* As the kernel's arch/x86/include/asm/ptrace.h; its order is ABI. */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

/* System V psABI, figure 3.4, and appendix A.2.1. */
#define ARGUMENT_1 di
#define ARGUMENT_2 si
#define ARGUMENT_3 dx
#define ARGUMENT_4 cx
#define ARGUMENT_5 r8
#define ARGUMENT_6 r9
#define RESULT ax
#define FRAME_POINTER bp
#define PROGRAM_COUNTER ip
#define SYSCALL_ARGUMENT_0 di
#define SYSCALL_ARGUMENT_1 si
#define SYSCALL_ARGUMENT_2 dx
#define SYSCALL_ARGUMENT_3 r10
#define SYSCALL_ARGUMENT_4 r8

static __always_inline struct link link_of(struct pt_regs *ctx)
{
	return (struct link){};
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

#endif

/* Argument `number`, 1-based, at a function's entry; 0 for argument 0. */
static __always_inline u64 argument(struct pt_regs *ctx, u32 number)
{
	u64 first = ctx->ARGUMENT_1, second = ctx->ARGUMENT_2, third = ctx->ARGUMENT_3;
	u64 fourth = ctx->ARGUMENT_4, fifth = ctx->ARGUMENT_5, sixth = ctx->ARGUMENT_6;

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
