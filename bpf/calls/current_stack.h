/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a probe to its stack record: takes a scratch, recalls or does the walk, finds or stores the record.
 *
 * The steps are functions that the verifier checks separately: recall_record, walk_to_record, record_unfinished,
 * remember_record and check_record. They get the key of the scratch; their other arguments are in `scratch->wanted`,
 * except the index of a record.
 */
#pragma once

#include "calls/deferral.h"
#include "calls/regs.h"
#include "config.h"
#include "counters.h"
#include "fast/memo.h"
#include "fast/run.h"
#include "hash.h"
#include "kernel.h"
#include "maps.h"
#include "process/changes.h"
#include "process/processes.h"
#include "python/chain.h"
#include "store/scratch.h"
#include "store/stacks.h"

/* Requests from user space, once per mapping list, the mapping or saves that the walk lacked. */
static __always_inline void request_reload(u64 owner, struct walk *walk)
{
	struct process *process = process_at(slot_of(owner));

	if (*(volatile u64 *)&process->reload_requested & RELOAD_REQUESTED ||
	    __sync_fetch_and_or(&process->reload_requested, RELOAD_REQUESTED) & RELOAD_REQUESTED)
		return;
	if (walk->saves_wanted)
		send_event(EVENT_SAVES_WANTED, instance_of(owner), walk->saves_wanted);
	else
		send_event(EVENT_UNKNOWN_MAPPING, instance_of(owner), walk->pc);
}

/*
 * Requests a reload if a walk ended in generated code, of which user space may know more by now. Does nothing while
 * reloads find nothing new.
 */
static __always_inline void request_generated(u64 owner, struct walk *walk)
{
	struct process *process = process_at(slot_of(owner));

	if (walk->end == END_ANONYMOUS_CODE && !*(volatile u64 *)&process->reload_requested)
		request_reload(owner, walk);
}

/* Returns whether a walk ended for lack of something that user space may know by now. */
static __always_inline bool lacks_something(u64 owner, struct walk *walk)
{
	struct process *process = process_at(slot_of(owner));

	if (walk->end == END_ANONYMOUS_CODE)
		return *(volatile u64 *)&process->reload_requested & RELOAD_JVM_BEGINS;
	return walk->end == END_NO_MAPPING || walk->end == END_TABLE_NOT_LOADED;
}

/* Returns the stack id of a finished walk, as if it had no Python frames. */
static __always_inline u64 native_id(struct walk *walk, struct wanted_stack *wanted)
{
	u64 id = mix(walk->hash, (u64)epoch_of(wanted->view) << 32 | instance_of(wanted->owner));

	return mix(id, wanted->function << 8 | walk->end);
}

/* Returns the id of the stack with a native id and a chain of Python frames. */
static __always_inline u64 id_with_python(u64 native, u32 python)
{
	return python ? mix(native, python) : native;
}

static __always_inline u64 stack_id(struct walk *walk, struct wanted_stack *wanted)
{
	return id_with_python(native_id(walk, wanted), wanted->python);
}

/*
 * Returns the index of the record of a finished walk's stack; stores it if it is new. Not inlined, to keep its
 * variables off the BPF stack during the walk: a chain of calls has 512 bytes in total (src/bpf/stack_depth.rs).
 */
static __noinline u32 record_of_walk(struct walk *walk, struct wanted_stack *wanted)
{
	u64 id = stack_id(walk, wanted);
	u32 *stored = bpf_map_lookup_elem(&stack_ids, &id);

	return stored ? *stored
		      : store_stack(walk, id, instance_of(wanted->owner), epoch_of(wanted->view), wanted->function,
				    wanted->python);
}

static __always_inline void begin_wanted_walk(struct fast_walk *fast, struct wanted_stack *wanted)
{
	begin_fast_walk(fast, list_of(wanted->view), wanted->changing, wanted->pc);
	know_link(&fast->walk.link, wanted->link);
}

/*
 * Walks the stack that scratch `key` wants, and returns the index of its record, which is stored if it is new; NO_STACK
 * if the walk lacks something, which is then requested. Not static: verified once, by itself, not for each state of its
 * caller.
 */
__noinline u32 walk_to_record(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);

	if (!scratch)
		return 0;

	struct fast_walk *fast = &scratch->fast;
	struct walk *walk = &fast->walk;
	struct wanted_stack *wanted = &scratch->wanted;

	begin_wanted_walk(fast, wanted);
	fast->leaves_trail = wanted->tries_memo;
	fast->stack_end = wanted->habits.stack_end;
	walk_stack(fast);
	wanted->habits.stack_end = fast->stack_end;
	if (lacks_something(wanted->owner, walk)) {
		request_reload(wanted->owner, walk);
		return NO_STACK;
	}
	request_generated(wanted->owner, walk);
	return record_of_walk(walk, wanted);
}

/*
 * Returns the index of the record of the walk that scratch `key` has just done, although the walk lacks something. Not
 * static, as above.
 */
__noinline u32 record_unfinished(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);

	return scratch ? record_of_walk(&scratch->fast.walk, &scratch->wanted) : 0;
}

/*
 * Returns the index of the record of the stack that a memo has found, but with the wanted Python frames; NO_STACK if
 * that was not stored yet.
 */
static __always_inline u32 recall_with_python(struct memo *memo, u32 stack, u32 python)
{
	u64 id = id_with_python(memo->native_id, python);
	u32 *stored;

	if (memo->python == python)
		return stack;
	stored = bpf_map_lookup_elem(&stack_ids, &id);
	if (!stored)
		return NO_STACK;
	memo->python = python;
	memo->stack = *stored;
	return *stored;
}

/*
 * Returns the index of the record of the stack that scratch `key` wants, if a memo has it; else NO_STACK. Needs only
 * the stack and frame pointer of the registers. Not static: verified once, by itself.
 */
__noinline u32 recall_record(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	struct memo *memo = NULL;
	u32 stack;

	if (!scratch)
		return 0;

	struct fast_walk *fast = &scratch->fast;
	struct wanted_stack *wanted = &scratch->wanted;
	u64 owner = wanted->owner;

	/* State, `changing`, view and tries_memo are set here only: the functions that run after this one read them. */
	wanted->state = state_of(slot_of(owner));
	/* Read before the view: user space publishes a list before it publishes the count of changes in it. */
	wanted->changing = is_changing(slot_of(owner));
	wanted->view = view_of(owner);
	forget_window(fast);
	if (walk_memo && !wanted->changing && tries_memo(&wanted->habits) &&
	    describes(wanted->state, wanted->view, owner))
		memo = take_memo(fast, wanted->pc);
	wanted->tries_memo = memo;
	if (!memo)
		return NO_STACK;
	stack = recall_stack(fast, memo, wanted->pc, wanted->state, wanted->function);
	if (reads_python && stack != NO_STACK)
		stack = recall_with_python(memo, stack, wanted->python);
	release_memo(memo);
	judge_memo(&wanted->habits, stack != NO_STACK);
	if (check_walks && stack != NO_STACK)
		count(COUNTER_RECALLED_WALK);
	return stack;
}

/* Stores the walk that scratch `key` has just done, and the record that it found, in the memo, if that was tried. */
__noinline u32 remember_record(u32 key, u32 stack)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	struct memo *memo;

	if (!scratch || !scratch->wanted.tries_memo)
		return 0;

	struct fast_walk *fast = &scratch->fast;
	struct wanted_stack *wanted = &scratch->wanted;

	memo = take_memo(fast, wanted->pc);
	if (!memo)
		return 0;
	remember_stack(fast, memo, wanted->pc, wanted->state, wanted->function, stack);
	memo->native_id = native_id(&fast->walk, wanted);
	memo->python = wanted->python;
	release_memo(memo);
	return 0;
}

/*
 * Returns whether the walk that a scratch has just repeated is that of record `stack`. For a stand-in, which has no
 * record, the walk is compared with the deferred one.
 */
static __always_inline bool is_same_walk(struct scratch *scratch, u32 stack)
{
	struct walk *walk = &scratch->fast.walk;
	struct deferred_walk *deferred = &scratch->deferred;

	if (stack < stack_capacity)
		return stack_id(walk, &scratch->wanted) == record_at(stack)->id;
	return walk->end == deferred->end && walk->pc == deferred->end_pc && walk->frame_count == deferred->frame_count;
}

/*
 * For tests: repeats the walk of scratch `key`, for which record `stack` was found, without fast paths, and counts a
 * difference.
 */
__noinline u32 check_record(u32 key, u32 stack)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);

	if (!scratch || stack < FIRST_STACK)
		return 0;

	struct fast_walk *fast = &scratch->fast;
	struct wanted_stack *wanted = &scratch->wanted;

	fast->plain = true;
	forget_window(fast);
	begin_wanted_walk(fast, wanted);
	walk_stack(fast);
	fast->plain = false;
	count(COUNTER_CHECKED_WALK);
	if (!is_same_walk(scratch, stack))
		count(COUNTER_DIFFERENT_WALK);
	return 0;
}

/* Start of a walk: the function that called the allocator. */
struct caller {
	u64 pc;
	u64 sp;
	struct link link;
};

/*
 * Returns the index of the stack record from `caller` on, which called `function`. `habits`: those of the thread, or
 * NULL.
 */
static __always_inline u32 current_stack(struct pt_regs *ctx, struct habits *habits, struct caller caller, u64 owner,
					 u32 function)
{
	u32 not_walked = MAX_FUNCTIONS + function;
	struct scratch *scratch;
	u32 key, index;

	if (unwind_off)
		return not_walked;
	if (unwind_by_kernel)
		return bpf_get_stackid(ctx, &kernel_stacks, BPF_F_USER_STACK) < 0 ? function : not_walked;
	scratch = take_scratch(&key);
	if (!scratch)
		return not_walked;
	scratch->fast.walk.at_probe[REGISTER_SP] = caller.sp;
	scratch->fast.walk.at_probe[REGISTER_FP] = frame_pointer(ctx);
	scratch->wanted.pc = caller.pc;
	know_link(&scratch->wanted.link, caller.link);
	scratch->wanted.owner = owner;
	scratch->wanted.function = function;
	scratch->wanted.habits = habits ? *habits : (struct habits){};
	scratch->wanted.python = 0;
	if (reads_python) {
		u32 python = find_python_chain(key);

		if (python == NEW_CHAIN)
			python = store_python_chain(key);
		scratch->wanted.python = python;
	}
	/*
	 * First, since it completes `wanted` for the functions that walk. No other probe uses the scratch until it is
	 * released.
	 */
	index = recall_record(key);
	if (index == NO_STACK || check_walks)
		save_other_registers(ctx, scratch->fast.walk.at_probe);
	if (index == NO_STACK) {
		/*
		 * Called in sequence, not nested: older kernels limit a chain of calls to 512 bytes of stack in total.
		 */
		index = walk_to_record(key);
		if (index == NO_STACK)
			index = defer_walk(key);
		if (index == NO_STACK)
			index = record_unfinished(key);
		if (walk_memo)
			remember_record(key, index);
	}
	if (check_walks)
		check_record(key, index);
	if (habits)
		*habits = scratch->wanted.habits;
	release_scratch(scratch);
	return index;
}
