/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The AArch64 part of the walk; x86_64.h has the same functions. See arch.h. Mirrors unwind-tables/src/walk/aarch64.rs.
 */
#pragma once

#include "config.h"
#include "kernel.h"
#include "walk/state.h"

enum machine {
	/* User addresses are below 2^ADDRESS_BITS; higher ones are not looked up. */
	ADDRESS_BITS = 48,
	/* A call pushes nothing: the stack pointer at the function's entry is where its frame begins. */
	RETURN_SLOT_BYTES = 0,
	/* Words of `bpf_user_pt_regs_t`, and which of them is the program counter. */
	CONTEXT_REGISTERS = 34,
	CONTEXT_PC = 32,
};

/* From the kernel's arch/arm64/include/asm/ptrace.h: the fields needed here; those before `orig_x0` are ABI. */
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
#define THREAD_POINTER uw.tp_value
/* A system call's result overwrites its first argument, of which the kernel keeps a copy. */
#define SYSCALL_ARGUMENT_0 orig_x0
#define SYSCALL_ARGUMENT_1 regs[1]
#define SYSCALL_ARGUMENT_2 regs[2]
#define SYSCALL_ARGUMENT_3 regs[3]
#define SYSCALL_ARGUMENT_4 regs[4]

/* From the kernel's arch/arm64/include/asm/ptrace.h: PSR_MODE32_BIT. */
#define MODE_32_BIT 0x10

/* Returns whether a 32-bit program made the system call: its calls have the same functions, but no tracepoints. */
static __always_inline bool is_32_bit(struct pt_regs *regs)
{
	return regs->pstate & MODE_32_BIT;
}

/* Saves nothing: programs use only the stack pointer, frame pointer and link register, see register_value. */
static __always_inline void save_other_registers(struct pt_regs *ctx, u64 *general)
{
}

/* Returns the link register at a probe or system call. */
static __always_inline struct link link_of(struct pt_regs *ctx)
{
	return (struct link){ .lr = ctx->regs[30], .known = true };
}

/* A frame in a call has overwritten its link register: only a running frame's is known. */
static __always_inline void forget_link(struct link *link)
{
	link->known = false;
}

static __always_inline void know_link(struct link *to, struct link link)
{
	*to = link;
}

/* Sets the link register if op `code` does; returns whether it does. */
static __always_inline bool set_link(struct link *link, u32 code, u64 value)
{
	if (code != OP_SET_LR)
		return false;
	*link = (struct link){ .lr = value, .known = true };
	return true;
}

/* Returns whether the frame's `sp` is exact. After a frame-pointer step it is only a lower bound: a frame record can be
 * anywhere in its frame. */
static __always_inline bool sp_is_known(struct walk *walk)
{
	return !is_found_by_fp(walk->found_by);
}

/* Returns whether plain rules can be used for the frame: their equations may need its stack pointer. */
static __always_inline bool plain_rules_apply(struct walk *walk)
{
	return unwind_by_fp || sp_is_known(walk);
}

/* Strips the pointer authentication code (PAC), if any, from an address. */
static __always_inline u64 without_code(u64 address)
{
	return address & ((1ULL << ADDRESS_BITS) - 1);
}

/* Returns the return address that the rule's slot holds as `ra`. */
static __always_inline u64 return_address(u32 rule, u64 ra)
{
	return unwind_by_fp || rule_b(rule) & RECORD_SIGNED ? without_code(ra) : ra;
}

/* Returns the return slot, which names the call, at a probe of the function's return. */
static __always_inline u64 returned_slot(struct pt_regs *ctx)
{
	return ctx->sp;
}

/* Returns the caller's stack pointer after the return, at a probe of the function's entry or `ret`. */
static __always_inline u64 callers_sp(struct pt_regs *ctx)
{
	return ctx->sp;
}

/* Reads a function's return address, at its entry or `ret`. Returns false if it cannot be read. */
static __always_inline bool read_returns_to(u64 slot, struct link link, u64 *address)
{
	*address = without_code(link.lr);
	return true;
}

/* Returns whether `address` is aligned for an instruction. */
static __always_inline bool is_aligned(u64 address)
{
	return address % 4 == 0;
}

/*
 * Returns whether the 8 code bytes before a return address end in `bl`, or in `blr` with or without authentication.
 * Mirrors unwind-tables/src/walk/call.rs.
 */
static __always_inline bool ends_in_call(u64 code)
{
	u32 instruction = code >> 32;

	return (instruction & 0xfc000000) == 0x94000000 || (instruction & 0xfffffc1f) == 0xd63f0000 ||
	       (instruction & 0xfefff800) == 0xd63f0800;
}

/*
 * Returns the target of the direct call before `ra`, with which the 8 bytes of `code` end; 0 if there is no direct
 * call.
 */
static __always_inline u64 called_directly(u64 ra, u64 code)
{
	u32 instruction = code >> 32;

	/* bl, whose low 26 bits are a signed number of instructions. */
	if ((instruction & 0xfc000000) != 0x94000000)
		return 0;
	return ra - 4 + ((s64)((u64)instruction << 38) >> 36);
}

/*
 * Returns whether the instruction at `address` is a jump to an address in a register, or one to an address from `start`
 * to `end`.
 */
static __always_inline bool may_be_jump(u64 code, u64 address, u64 entry, u64 start, u64 end)
{
	u32 instruction = code;
	u64 target = address + ((s64)((u64)instruction << 38) >> 36);

	if (address % 4)
		return false;
	if ((instruction & 0xfffffc1f) == 0xd61f0000 || (instruction & 0xfefff800) == 0xd61f0800)
		return true;
	return (instruction & 0xfc000000) == 0x14000000 && target >= start && target <= end;
}

/* Returns how a function returns, by 8 bytes of its code that end before `end`: after restoring the frame pointer
 * and the link register as a pair, or otherwise. */
static __always_inline enum how_it_returns how_it_returns(u64 code, u64 end)
{
	u32 instruction = code >> 32;

	if (end % 4)
		return RETURNS_LATER;
	/* ldp x29, x30, [sp], N; ldp x29, x30, [sp, N] */
	if ((instruction & 0xffc07fff) == 0xa8c07bfd || (instruction & 0xffc07fff) == 0xa9407bfd)
		return RETURNS_WITH_FP;
	/* ret, retaa, retab; 0 is no instruction. */
	if (instruction == 0xd65f03c0 || (instruction & 0xfffffbff) == 0xd65f0bff || !instruction)
		return RETURNS_OTHERWISE;
	return RETURNS_LATER;
}

/* Returns whether code behind a call uses the frame pointer as the base of its own frame: not looked for. */
static __always_inline bool uses_own_frame(u64 code, u64 behind_seven)
{
	return false;
}

/*
 * Returns where the code at `address` jumps, if it does nothing else (PLT entries, functions that only tail-call); else
 * `address`.
 */
static __always_inline u64 behind_jump(u64 address)
{
	u64 code, next;

	if (bpf_probe_read_user(&code, 8, (void *)address))
		return address;
	/* bti c */
	if ((u32)code == 0xd503245f) {
		address += 4;
		if (bpf_probe_read_user(&code, 8, (void *)address))
			return address;
	}

	u32 first = code, second = code >> 32;

	/* b N */
	if ((first & 0xfc000000) == 0x14000000)
		return address + ((s64)((u64)first << 38) >> 36);
	/* adrp x16, N; ldr x17, [x16, #M] */
	if ((first & 0x9f00001f) != 0x90000010 || (second & 0xffc003ff) != 0xf9400211)
		return address;

	u64 pages = (u64)(first >> 5 & 0x7ffff) << 2 | (first >> 29 & 3);
	u64 page = (address & ~4095ULL) + ((s64)(pages << 43) >> 31);

	return bpf_probe_read_user(&next, 8, (void *)(page + 8 * (second >> 10 & 0xfff))) ? address : next;
}

/* Returns false: generated code has frame records. */
static __always_inline bool returns_at_once(u64 code, u64 *freed, bool *pops_fp)
{
	return false;
}

/* Returns false: a call leaves nothing on the stack. */
static __always_inline bool ends_in_local_call(u64 code)
{
	return false;
}

/*
 * Returns the value of a register in the current frame; sets `program.end` for all but stack pointer, frame pointer and
 * link register, and for these if they are unknown.
 */
static __always_inline u64 register_value(struct walk *walk, u32 number)
{
	if (number == REGISTER_SP && sp_is_known(walk))
		return walk->sp;
	if (number == REGISTER_FP) {
		depend_on_fp(walk);
		return walk->fp;
	}
	depend_on_more(walk);
	if (number == REGISTER_LR && walk->link.known)
		return walk->link.lr;
	walk->program.end = END_UNSUPPORTED_RULE;
	return 0;
}

/* Returns the number of the rule's slot, 1-based; 0 for none. */
static __always_inline u64 record_slot(u32 rule)
{
	return rule_b(rule) & (RECORD_SIGNED - 1);
}

/* Goes to the caller by the link register, which holds the return address of a running frame that has not saved it. */
static __always_inline enum end_cause return_by_link(struct walk *walk, u32 rule, u64 cfa)
{
	depend_on_more(walk);
	if (!walk->link.known)
		return END_UNSUPPORTED_RULE;
	if (cfa < walk->sp)
		return END_NO_PROGRESS;
	go_to(walk, return_address(rule, walk->link.lr), cfa, walk->fp);
	return END_NONE;
}

/* Goes to the caller without an exact sp: by the frame pointer, if the function has a frame record, else not at all. */
static __always_inline enum end_cause apply_record_without_sp(struct walk *walk, u32 rule)
{
	if (rule_kind(rule) == RULE_SP && record_slot(rule))
		return apply_fp(walk, END_UNSUPPORTED_RULE);
	return END_UNSUPPORTED_RULE;
}

/* Goes to the caller by a frame record, or by a saved return address alone (RULE_LONE). */
static __always_inline enum end_cause apply_record(struct walk *walk, u32 rule)
{
	bool from_fp = rule_kind(rule) == RULE_FP;

	if (!from_fp && !sp_is_known(walk))
		return apply_record_without_sp(walk, rule);

	u64 base = from_fp ? walk->fp : walk->sp;
	u64 cfa = base + 8 * rule_a(rule);
	u64 slot = base + 8 * record_slot(rule) - 8;
	u64 fp = walk->fp, ra;

	if (from_fp)
		depend_on_fp(walk);
	if (!record_slot(rule))
		return return_by_link(walk, rule, cfa);
	if (cfa <= walk->sp && !(from_fp && may_switch_stack(walk)))
		return END_NO_PROGRESS;
	if (rule_kind(rule) != RULE_LONE) {
		if (!read_fp_slot(walk, slot, &fp))
			return END_READ_FAULT;
		slot += 8;
	}
	if (!read_slot(walk, slot, &ra))
		return END_READ_FAULT;
	go_to(walk, return_address(rule, ra), cfa, fp);
	return END_NONE;
}

/* Goes to the caller by a plain rule. */
static __always_inline enum end_cause apply_equation(struct walk *walk, u32 rule)
{
	switch (rule_kind(rule)) {
	case RULE_SP:
	case RULE_FP:
	case RULE_LONE:
		return apply_record(walk, rule);
	default:
		return apply_stop(walk, rule);
	}
}

/*
 * Evaluates the equations of apply_record without branches. Returns false if `rule` has no slot or makes no progress.
 */
static __always_inline bool find_slots(u32 rule, u64 sp, u64 fp, struct caller_slots *slots)
{
	u64 kind = (u64)rule_kind(rule) - RULE_SP;
	u64 from_fp = -(u64)(kind == RULE_FP - RULE_SP);
	u64 is_lone = -(u64)(kind == RULE_LONE - RULE_SP);
	u64 base;

	OPAQUE(from_fp);
	OPAQUE(is_lone);
	base = sp + ((fp - sp) & from_fp);
	slots->cfa = base + 8 * rule_a(rule);
	slots->fp = base + 8 * record_slot(rule) - 8;
	slots->ra = slots->fp + (8 & ~is_lone);
	slots->has_fp = ~is_lone;
	return kind <= RULE_LONE - RULE_SP && record_slot(rule) && slots->cfa > sp;
}
