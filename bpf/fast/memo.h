/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walks that need not be done again: by the registers that they began with, the record of the stack that they found.
 *
 * It is the same stack if the slot of the process has the same instance and mappings, no change of them is announced,
 * the registers are the same, and memory holds what the walk's trail says (see fast/trail.h for why). All of it is
 * compared at each use; nothing is taken for likely.
 *
 * A memo is one probe's at a time: it is taken by an exchange, and a probe that does not get it walks without.
 */
#pragma once

#include "config.h"
#include "fast/run.h"
#include "fast/trail.h"
#include "fast/window.h"
#include "hash.h"
#include "kernel.h"
#include "maps.h"

/* The most that a thread's memo can be worth before it is given up, and what a find adds to it. */
#define MEMO_MOST_WORTH 64
#define MEMO_FIND_WORTH 1
/* A thread that has given up tries one of so many walks; a power of two. */
#define MEMO_TRIAL 16
#define NO_STACK (~0U)

static __always_inline struct memo *memo_at(u64 number)
{
	struct memo *all = memos;

	OPAQUE(all);
	return &all[number & memo_mask];
}

/*
 * Whether a thread's walk is worth a try. Where no stack is seen again soon, a memo that is looked for, not found, and
 * made costs more than it can save.
 */
static __always_inline bool tries_memo(struct habits *habits)
{
	return habits->memo_worth || (++habits->walks & (MEMO_TRIAL - 1)) == 0;
}

static __always_inline void judge_memo(struct habits *habits, bool found)
{
	u32 worth = habits->memo_worth;

	if (!found)
		habits->memo_worth = worth - !!worth;
	else if (worth < MEMO_MOST_WORTH)
		habits->memo_worth = worth + MEMO_FIND_WORTH;
}

/* The memo for a walk from `pc` and the registers in `at_probe`, taken; NULL if another has it. */
static __always_inline struct memo *take_memo(struct fast_walk *fast, u64 pc)
{
	/* Not by the frame pointer, which few walks depend on. */
	u64 hash = mix(mix(0, pc), fast->walk.at_probe[REGISTER_SP]);
	struct memo *memo = memo_at(hash >> 32);

	return __sync_lock_test_and_set(&memo->taken, 1) ? NULL : memo;
}

static __always_inline void release_memo(struct memo *memo)
{
	asm volatile("" ::: "memory");
	*(volatile u64 *)&memo->taken = 0;
}

/* Whether memory outside the stack holds what it should. */
static __always_inline bool checks_hold(struct memo *memo)
{
	u64 different = 0;

#pragma unroll
	for (u32 number = 0; number < TRAIL_CHECKS; number++) {
		u64 held;

		if (number >= memo->check_count)
			break;
		different |= bpf_probe_read_user(&held, 8, (void *)memo->checks[number].at);
		different |= held ^ memo->checks[number].word;
	}
	return !different;
}

/* Whether the stack holds what it did. What is read of it stays in the walk's window. */
static __always_inline bool slots_hold(struct fast_walk *fast, struct memo *memo)
{
	u64 different = 0;

	if (!read_window(fast, memo->sp, memo->stack_bytes))
		return false;
	for (u32 number = 0; number < TRAIL_SLOTS; number += 4) {
		if (number >= memo->slot_count)
			break;
#pragma unroll
		for (u32 next = number; next < number + 4; next++) {
			u64 at = memo->slot_at[next] & (WINDOW_BYTES - 8);

			different |= *(stack_slot *)((u8 *)fast->window + at) ^ memo->slot_value[next];
		}
		if (different)
			return false;
	}
	return true;
}

/* The record of the stack that a walk would find, if it is known; else NO_STACK. `state` is that of the process slot. */
static __always_inline u32 recall_stack(struct fast_walk *fast, struct memo *memo, u64 pc, u64 state, u32 function)
{
	u64 different = memo->state ^ state;

	different |= memo->pc ^ pc;
	different |= memo->sp ^ fast->walk.at_probe[REGISTER_SP];
	different |= (memo->fp ^ fast->walk.at_probe[REGISTER_FP]) & ~memo->fp_unneeded;
	different |= memo->function ^ function;
	if (different || !slots_hold(fast, memo) || !checks_hold(memo))
		return NO_STACK;
	return memo->stack;
}

/* Repeats the last slot of a trail, so that slots can be compared four at a time. Returns how many there are then. */
static __always_inline u32 fill_up(struct trail *trail)
{
	u32 count = trail->slot_count;
	u32 last = (count - 1) & (TRAIL_SLOTS - 1);

#pragma unroll
	for (u32 more = 0; more < 3; more++) {
		u32 next = (count + more) & (TRAIL_SLOTS - 1);

		if (count + more >= TRAIL_SLOTS)
			break;
		OPAQUE(next);
		trail->slot_at[next & (TRAIL_SLOTS - 1)] = trail->slot_at[last];
		trail->slot_value[next & (TRAIL_SLOTS - 1)] = trail->slot_value[last];
	}
	return (count + 3) & ~3U;
}

/* Makes `memo` say that the walk, which began at `pc`, found record `stack`; or nothing, if that cannot be said. */
static __always_inline void remember_stack(struct fast_walk *fast, struct memo *memo, u64 pc, u64 state, u32 function,
					   u32 stack)
{
	struct trail *trail = &fast->trail;
	u32 count;

	memo->state = 0;
	if (!is_repeatable(fast) || stack < FIRST_STACK)
		return;
	count = fill_up(trail);
	OPAQUE(count);
	if (count > TRAIL_SLOTS)
		return;
	for (u32 number = 0; number < TRAIL_SLOTS; number += 4) {
		if (number >= count)
			break;
#pragma unroll
		for (u32 next = number; next < number + 4; next++) {
			memo->slot_at[next] = trail->slot_at[next];
			memo->slot_value[next] = trail->slot_value[next];
		}
	}
	if (trail->check_count)
		bpf_probe_read_kernel(memo->checks, sizeof(memo->checks), trail->checks);
	memo->pc = pc;
	memo->sp = fast->walk.at_probe[REGISTER_SP];
	memo->fp = fast->walk.at_probe[REGISTER_FP];
	memo->fp_unneeded = trail->needs_fp ? 0 : ~0ULL;
	memo->stack = stack;
	memo->function = function;
	memo->stack_bytes = trail->stack_bytes;
	memo->slot_count = count;
	memo->check_count = trail->check_count;
	memo->state = state;
}
