/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk memo: from the registers at the start of a walk to the record of the stack that it found.
 *
 * A walk finds the same stack if the process slot has the same instance and mappings, no change of them is announced,
 * the registers are the same, and memory holds the words of the trail (see fast/trail.h for the proof). All of these
 * are compared at each use; none is assumed.
 *
 * A memo is used by one probe at a time: it is taken by an exchange, and a probe that fails to take it walks without
 * it.
 */
#pragma once

#include "config.h"
#include "fast/run.h"
#include "fast/trail.h"
#include "fast/window.h"
#include "hash.h"
#include "kernel.h"
#include "maps.h"

/* Maximum of a thread's memo score, and the increment for a hit. */
#define MEMO_MOST_WORTH 64
#define MEMO_FIND_WORTH 1
/* Interval of the walks that try the memo in a thread whose score is 0; a power of two. */
#define MEMO_TRIAL 16
#define NO_STACK (~0U)

static __always_inline struct memo *memo_at(u64 number)
{
	struct memo *all = memos;

	OPAQUE(all);
	return &all[number & memo_mask];
}

/*
 * Returns whether a thread's walk should try the memo. If stacks are rarely repeated, lookups that miss and the storing
 * that follows cost more than hits save.
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

/* Takes the memo for a walk from `pc` and the registers in `at_probe`; returns NULL if another probe has it. */
static __always_inline struct memo *take_memo(struct fast_walk *fast, u64 pc)
{
	/* The frame pointer is not hashed: few walks depend on it. */
	u64 hash = mix(mix(0, pc), fast->walk.at_probe[REGISTER_SP]);
	struct memo *memo = memo_at(hash >> 32);

	return __sync_lock_test_and_set(&memo->taken, 1) ? NULL : memo;
}

static __always_inline void release_memo(struct memo *memo)
{
	asm volatile("" ::: "memory");
	*(volatile u64 *)&memo->taken = 0;
}

/* Returns whether all checks of the trail, words outside the stack, match. */
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

/* Returns whether all slots of the trail match. The stack bytes read remain in the walk's window. */
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

/*
 * Returns the index of the record that a walk would find, if the memo has it; else NO_STACK. `state`: of the process
 * slot.
 */
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

/*
 * Repeats the last slot of a trail up to a multiple of four, so that slots can be compared four at a time. Returns
 * their number.
 */
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

/* Stores in `memo` that the walk from `pc` found record `stack`; clears the memo if the walk is not repeatable. */
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
