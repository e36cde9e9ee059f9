/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a walk has to know of AArch64 where x86-64 has nothing to know: the link register, the authentication code of
 * return addresses, and stack pointers that are not known. All of it is nothing on x86-64.
 */
#pragma once

#ifdef __TARGET_ARCH_arm64

/* A return probe is known by the stack pointer at its function's entry, where nothing is pushed. */
#define RETURN_SLOT_BYTES 0

/* A call has overwritten the link register: only what was running has something in it. */
static __always_inline void forget_link(struct walk *walk)
{
	walk->lr_known = false;
}

/* An address that may have an authentication code, without it. */
static __always_inline u64 without_code(u64 address)
{
	return address & ((1ULL << ADDRESS_BITS) - 1);
}

/* A frame record can be anywhere in its frame: behind a step by the frame pointer, `sp` is only a lower bound. */
static __always_inline bool sp_is_known(struct walk *walk)
{
	return walk->found_by != FOUND_BY_FP;
}

/* Whether the equations of plain rules hold for the frame, which may need its stack pointer. */
static __always_inline bool plain_rules_apply(struct walk *walk)
{
	return unwind_by_fp || sp_is_known(walk);
}

/* The return address that a rule finds as `ra`. */
static __always_inline u64 return_address(u32 rule, u64 ra)
{
	return unwind_by_fp || rule_b(rule) & RECORD_SIGNED ? without_code(ra) : ra;
}

#else

/* A call pushes the return address. */
#define RETURN_SLOT_BYTES 8

static __always_inline void forget_link(struct walk *walk)
{
}

static __always_inline u64 without_code(u64 address)
{
	return address;
}

static __always_inline bool sp_is_known(struct walk *walk)
{
	return true;
}

static __always_inline bool plain_rules_apply(struct walk *walk)
{
	return true;
}

static __always_inline u64 return_address(u32 rule, u64 ra)
{
	return ra;
}

#endif
