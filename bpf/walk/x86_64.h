/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The x86-64 part of the walk; aarch64.h has the same functions. See arch.h. */
#pragma once

#include "config.h"
#include "kernel.h"
#include "walk/state.h"

enum machine {
	/* User addresses are below 2^ADDRESS_BITS; higher ones are not looked up. */
	ADDRESS_BITS = 47,
	/* A call pushes the return address: the stack pointer at the function's entry is the address of its slot. */
	RETURN_SLOT_BYTES = 8,
	/* Words of `bpf_user_pt_regs_t`, and which of them is the program counter. */
	CONTEXT_REGISTERS = 21,
	CONTEXT_PC = 16,
	/* Maximum number of bytes that a call within a frame skips. */
	MAX_LOCAL_CALL = 16,
};

/* From the kernel's arch/x86/include/asm/ptrace.h; the order is ABI. */
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
#define THREAD_POINTER fsbase
#define SYSCALL_ARGUMENT_0 di
#define SYSCALL_ARGUMENT_1 si
#define SYSCALL_ARGUMENT_2 dx
#define SYSCALL_ARGUMENT_3 r10
#define SYSCALL_ARGUMENT_4 r8

/* Returns false: the kernel has other functions for the calls of 32-bit programs, which are not followed. */
static __always_inline bool is_32_bit(struct pt_regs *regs)
{
	return false;
}

/* Saves the general registers except stack and frame pointer, by DWARF number (x86-64 psABI, figure 3.36). */
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

/* Returns the link register at a probe or system call. */
static __always_inline struct link link_of(struct pt_regs *ctx)
{
	return (struct link){};
}

static __always_inline void forget_link(struct link *link)
{
}

static __always_inline void know_link(struct link *to, struct link link)
{
}

/* Sets the link register if op `code` does; returns whether it does. */
static __always_inline bool set_link(struct link *link, u32 code, u64 value)
{
	return false;
}

/* Returns whether the frame's `sp` is exact: always, on x86-64. */
static __always_inline bool sp_is_known(struct walk *walk)
{
	return true;
}

/* Returns whether plain rules can be used for the frame: their equations may need its stack pointer. */
static __always_inline bool plain_rules_apply(struct walk *walk)
{
	return true;
}

/* Strips the pointer authentication code (PAC), if any, from an address. */
static __always_inline u64 without_code(u64 address)
{
	return address;
}

/* Returns the return address that the rule's slot holds as `ra`. */
static __always_inline u64 return_address(u32 rule, u64 ra)
{
	return ra;
}

/* Returns the return slot, which names the call, at a probe of the function's return. */
static __always_inline u64 returned_slot(struct pt_regs *ctx)
{
	return ctx->sp - RETURN_SLOT_BYTES;
}

/* Returns the caller's stack pointer after the return, at a probe of the function's entry or `ret`. */
static __always_inline u64 callers_sp(struct pt_regs *ctx)
{
	return ctx->sp + RETURN_SLOT_BYTES;
}

/* Reads a function's return address, at its entry or `ret`. Returns false if it cannot be read. */
static __always_inline bool read_returns_to(u64 slot, struct link link, u64 *address)
{
	return bpf_probe_read_user(address, 8, (void *)slot) == 0;
}

/* Returns whether `address` is aligned for an instruction. */
static __always_inline bool is_aligned(u64 address)
{
	return true;
}

/* Returns whether `code` ends in an indirect call of exactly `length` bytes. */
static __always_inline bool is_call(u64 code, u32 length)
{
	u64 bytes = code >> (64 - 8 * length);
	u32 modrm = bytes >> 8 & 0xff;
	u32 sib = length > 2 ? bytes >> 16 & 0xff : 0;
	u32 mode = modrm >> 6;
	u32 rm = modrm & 7;
	u32 expected = 2;

	if ((bytes & 0xff) != 0xff || (modrm & 0x38) != 0x10)
		return false;
	if (mode != 3 && rm == 4)
		expected += 1;
	if (mode == 1)
		expected += 1;
	else if (mode == 2 || (mode == 0 && (rm == 5 || (rm == 4 && (sib & 7) == 5))))
		expected += 4;
	return expected == length;
}

/*
 * Returns whether the 8 code bytes before a return address can end in an indirect `call`: ff /2, with each length that
 * its ModRM and SIB bytes can require.
 */
static __always_inline bool ends_in_indirect_call(u64 code)
{
	return is_call(code, 2) || is_call(code, 3) || is_call(code, 4) || is_call(code, 5) ||
	       is_call(code, 6) || is_call(code, 7);
}

/* Returns whether the 8 code bytes before a return address end in a `call`. Direct: e8 and four bytes. Mirrors
 * unwind-tables/src/walk/call.rs. */
static __always_inline bool ends_in_call(u64 code)
{
	return (code >> 24 & 0xff) == 0xe8 || ends_in_indirect_call(code);
}

/*
 * Returns the target of the direct call before `ra`, with which the 8 bytes of `code` end; 0 if there is none, or if it
 * may be an indirect one.
 */
static __always_inline u64 called_directly(u64 ra, u64 code)
{
	if ((code >> 24 & 0xff) != 0xe8 || ends_in_indirect_call(code))
		return 0;
	return ra + (s64)(s32)(code >> 32);
}

/*
 * Returns whether the bytes at `address`, in the function at `entry`, are or may be an indirect jump, or a jump to an
 * address from `start` to `end`. Short and conditional jumps leave the function only if they go to an address before
 * it. Not static: verified once, by itself, and not for each byte of a search.
 */
__noinline bool may_be_jump(u64 code, u64 address, u64 entry, u64 start, u64 end)
{
	u64 target;

	if ((code & 0x38ff) == 0x20ff)
		return true;
	if ((code & 0xff) == 0xe9) {
		target = address + 5 + (s64)(s32)(code >> 8);
		return target >= start && target <= end;
	}
	if ((code & 0xff) == 0xeb || (code & 0xf0) == 0x70)
		target = address + 2 + (s64)(signed char)(code >> 8);
	else if ((code & 0xf0ff) == 0x800f)
		target = address + 6 + (s64)(s32)(code >> 16);
	else
		return false;
	return target >= start && target <= end && target < entry;
}

/*
 * Returns how a function returns, by 8 bytes of its code that end before `end`: with `mov %rbp, %rsp; pop %rbp`,
 * `mov (%rbp), %rbp; add $N, %rsp` or `leave; ret` by the frame pointer, with `pop %rbp; ret`, or otherwise.
 * Instruction boundaries are unknown: a c3 or c9 that may be an operand does not count. Two int3 are between functions.
 * Not static: verified once, by itself, and not for each byte of a search.
 */
__noinline enum how_it_returns how_it_returns(u64 code, u64 end)
{
	/* It is needed on AArch64, and compilers would leave the argument unset, which the verifier refuses. */
	OPAQUE(end);

	u32 last = code >> 56, before = code >> 48 & 0xff, earlier = code >> 40 & 0xff;

	if (last == 0xcc && before == 0xcc)
		return RETURNS_OTHERWISE;
	if (code >> 32 == 0x5de58b48 || code >> 32 == 0x5dec8948)
		return RETURNS_BY_FP;
	if (code << 8 == 0xc48348006d8b4800 || code << 8 == 0xc48148006d8b4800)
		return RETURNS_BY_FP;
	if ((last & 0xfe) != 0xc2)
		return RETURNS_LATER;
	/* Not xor and mov of %ecx. */
	if (before == 0xc9 && (earlier & 0xfd) != 0x31 && (earlier & 0xfd) != 0x89)
		return RETURNS_BY_FP;
	if (before == 0x5d && earlier != 0x41)
		return RETURNS_WITH_FP;
	if (last == 0xc2)
		return RETURNS_LATER;
	/* mov, test, arithmetic and others, whose operands are %rbx and another register. */
	if (before == 0x89 || before == 0x8b || before == 0x85 || before == 0x83 || before == 0x81 || before == 0xc7)
		return RETURNS_LATER;
	/* With a prefix for registers of 64 bits. */
	if ((earlier & 0xf0) == 0x40 && ((before & 0xc4) == 0 || before == 0x63 || before == 0xff || before == 0xf7))
		return RETURNS_LATER;
	return earlier == 0x0f ? RETURNS_LATER : RETURNS_OTHERWISE;
}

/*
 * Returns whether code behind a call uses the frame pointer as the base of its own frame: by `mov -N(%rbp), %reg`, or
 * by `cmp N(%r13), %rax; je; leave`, as V8 calls native code. Given are its first 8 bytes, and the 8 behind the first
 * 7.
 */
static __always_inline bool uses_own_frame(u64 code, u64 behind_seven)
{
	if ((code & 0x80c7fffb) == 0x80458b48)
		return true;
	return (code & 0xffffff) == 0x853b49 && (behind_seven & 0xff00000000ffff) == 0xc900000000840f;
}

/*
 * Returns where the code at `address` jumps, if it does nothing else (PLT entries, functions that only tail-call); else
 * `address`.
 */
static __always_inline u64 behind_jump(u64 address)
{
	u64 code, next, from;

	if (bpf_probe_read_user(&code, 8, (void *)address))
		return address;
	/* endbr64 */
	if ((u32)code == 0xfa1e0ff3) {
		address += 4;
		if (bpf_probe_read_user(&code, 8, (void *)address))
			return address;
	}
	from = address;
	/* bnd */
	if ((code & 0xff) == 0xf2) {
		from += 1;
		code >>= 8;
	}
	/* jmp *N(%rip) */
	if ((code & 0xffff) == 0x25ff)
		return bpf_probe_read_user(&next, 8, (void *)(from + 6 + (s64)(s32)(code >> 16))) ? address : next;
	/* jmp N */
	if ((code & 0xff) == 0xe9)
		return from + 5 + (s64)(s32)(code >> 8);
	if ((code & 0xff) == 0xeb)
		return from + 2 + (s64)(signed char)(code >> 8);
	return address;
}

/*
 * Returns whether the 8 code bytes before an address end in a `call` over a few bytes only, which pushes an address
 * within a frame. HotSpot's interpreter does that before it calls native code: the call is to the instruction behind
 * the jump that follows.
 */
static __always_inline bool ends_in_local_call(u64 code)
{
	return (code >> 24 & 0xff) == 0xe8 && code >> 32 <= MAX_LOCAL_CALL;
}

/* Returns whether `code` returns from the function, perhaps after freeing its stack and popping the frame pointer,
 * each at most once and in this order: compilers of generated code end small functions so. */
static __always_inline bool returns_at_once(u64 code, u64 *freed, bool *pops_fp)
{
	*freed = 0;
	/* add $N, %rsp */
	if ((code & 0xffffff) == 0xc48348) {
		*freed = code >> 24 & 0xff;
		code >>= 32;
	}
	/* pop %rbp */
	*pops_fp = (code & 0xff) == 0x5d;
	if (*pops_fp)
		code >>= 8;
	/* ret; N is a signed byte: only whole slots, and not below 0. */
	return (code & 0xff) == 0xc3 && !(*freed & 0x87);
}

/* Returns the value of a register in the current frame; sets `program.end` if it cannot be found. */
static __always_inline u64 register_value(struct walk *walk, u32 number)
{
	if (number == REGISTER_SP)
		return walk->sp;
	if (number == REGISTER_FP) {
		depend_on_fp(walk);
		return walk->fp;
	}
	if (number == REGISTER_PC)
		return walk->pc;
	return find_register(walk, number);
}

static __always_inline enum end_cause apply_offset(struct walk *walk, u32 rule)
{
	u64 base = rule_kind(rule) == RULE_SP ? walk->sp : walk->fp;
	u64 cfa = base + 8 * rule_a(rule);
	u64 fp_slot = rule_b(rule) ? cfa - 8 * rule_b(rule) : 0;

	if (rule_kind(rule) == RULE_SP)
		return go_to_caller(walk, cfa, cfa - 8, fp_slot);
	depend_on_fp(walk);
	return go_to_caller_by_fp(walk, cfa, cfa - 8, fp_slot);
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

	depend_on_fp(walk);
	if (!read_slot(walk, walk->fp + signed_slots(rule_a(rule), RULE_A_BITS), &cfa))
		return END_READ_FAULT;
	return go_to_caller_by_fp(walk, cfa, cfa - 8, walk->fp + signed_slots(rule_b(rule), RULE_B_BITS));
}

/* Goes to the caller by a plain rule. */
static __always_inline enum end_cause apply_equation(struct walk *walk, u32 rule)
{
	switch (rule_kind(rule)) {
	case RULE_SP:
	case RULE_FP:
		return apply_offset(walk, rule);
	case RULE_PLT:
		return apply_plt(walk, rule);
	case RULE_DRAP:
		return apply_drap(walk, rule);
	default:
		return apply_stop(walk, rule);
	}
}

/*
 * Evaluates the equations of apply_offset without branches. Returns false if `rule` is of another kind or makes no
 * progress.
 */
static __always_inline bool find_slots(u32 rule, u64 sp, u64 fp, struct caller_slots *slots)
{
	/* 0 for RULE_SP, 1 for RULE_FP, so that -kind is a mask; other kinds give values that are not used. */
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
}
