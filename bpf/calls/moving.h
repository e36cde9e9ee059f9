/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Calls that can end on another thread than they began on: those of functions that the user describes (--alloc), in
 * which a fiber can wait and then continue on another thread.
 *
 * Such a call belongs to its stack, not to its thread: it is kept under its return slot, where the `ret` of any thread
 * finds it. The thread on which it began remembers it too, to recognize calls within it; the kept copy says whether the
 * call is still on that thread.
 */
#pragma once

#include "calls/current_call.h"
#include "calls/current_stack.h"
#include "calls/nesting.h"
#include "calls/regs.h"
#include "calls/return_address.h"
#include "calls/threads.h"
#include "config.h"
#include "maps.h"

/* Maximum number of steps of a walk from a function to the call that it may be within. */
#define MAX_STEPS_WITHIN 32

static __always_inline struct call_key key_of(u64 owner, u64 slot)
{
	return (struct call_key){ .owner = owner, .return_slot = slot };
}

/* Puts the thread's current call into `moving_calls`. If that is full, the call stays with its thread, like others. */
static __noinline void keep_call(struct thread *thread)
{
	struct call_key key = key_of(thread->owner, thread->call.return_slot);
	struct call *left = bpf_map_lookup_elem(&moving_calls, &key);

	/* The call that was kept there is over, as its place on the stack is used again. */
	if (left)
		end_unseen(instance_of(thread->owner), left);
	thread->call.moves = true;
	thread->call.thread = bpf_get_current_pid_tgid();
	thread->call.moves = bpf_map_update_elem(&moving_calls, &key, &thread->call, BPF_ANY) == 0;
}

/* Removes the thread's current call, which ends, from `moving_calls`. */
static __always_inline void drop_call(struct thread *thread)
{
	struct call_key key = key_of(thread->owner, thread->call.return_slot);

	bpf_map_delete_elem(&moving_calls, &key);
}

/*
 * Returns whether the walk that scratch `key` wants reaches the stack pointer `sp`; true as well if the walk ends for
 * lack of something that user space will know later.
 */
static __always_inline bool leads_to(u32 key, u64 sp)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);

	if (!scratch)
		return true;

	struct fast_walk *fast = &scratch->fast;
	struct wanted_stack *wanted = &scratch->wanted;
	struct walk *walk = &fast->walk;

	wanted->changing = is_changing(slot_of(wanted->owner));
	wanted->view = view_of(wanted->owner);
	forget_window(fast);
	begin_wanted_walk(fast, wanted);
	fast->leaves_trail = false;
	for (u32 number = 0; number < MAX_STEPS_WITHIN; number++) {
		if (walk->sp >= sp)
			return walk->sp == sp;
		if (!take_step(fast))
			return walk->end == END_NO_MAPPING || walk->end == END_TABLE_NOT_LOADED;
	}
	return false;
}

/*
 * Returns whether a function that begins was called, directly or not, from within the call at `slot`. True if that is
 * unknown.
 */
static __noinline bool is_called_from(struct pt_regs *ctx, u64 owner, u64 slot)
{
	u64 at_return = slot + callers_sp(ctx) - return_slot(ctx);
	struct scratch *scratch;
	u64 caller;
	u32 key;
	bool leads;

	if (unwind_off || unwind_by_kernel || unwind_by_fp || !read_return_address(way_back(ctx), &caller))
		return true;
	scratch = take_scratch(&key);
	if (!scratch)
		return true;
	scratch->fast.walk.at_probe[REGISTER_SP] = callers_sp(ctx);
	scratch->fast.walk.at_probe[REGISTER_FP] = frame_pointer(ctx);
	save_other_registers(ctx, scratch->fast.walk.at_probe);
	scratch->wanted.pc = caller;
	forget_link(&scratch->wanted.link);
	scratch->wanted.owner = owner;
	leads = leads_to(key, at_return);
	release_scratch(scratch);
	return leads;
}

/*
 * Returns whether a function that begins on the current thread is not within the thread's current call, which can move.
 */
static __noinline bool has_moved(struct thread *thread, struct pt_regs *ctx)
{
	struct call_key key = key_of(thread->owner, thread->call.return_slot);
	struct call *kept = bpf_map_lookup_elem(&moving_calls, &key);

	/* The call has ended on another thread, and another may have begun in its place since. */
	if (!kept || kept->thread != (u32)bpf_get_current_pid_tgid())
		return true;
	return !is_called_from(ctx, thread->owner, thread->call.return_slot);
}

/*
 * Makes the call that ends at this `ret` the current one of the thread, whose state is `thread`, NULL if it has none
 * yet.
 */
static __noinline struct thread *take_up_call(struct thread *thread, struct pt_regs *ctx)
{
	struct call_key key = key_of(current_owner(thread), return_slot(ctx));
	struct call *kept;

	if (!key.owner)
		return NULL;
	thread = owned_thread(thread, key.owner);
	if (!thread)
		return NULL;
	kept = bpf_map_lookup_elem(&moving_calls, &key);
	if (!kept) {
		/* The thread remembers a call that has ended elsewhere. */
		if (thread->call.moves)
			thread->call.return_slot = 0;
		return thread;
	}
	if (thread->call.return_slot != key.return_slot)
		forget_call(thread);
	thread->call = *kept;
	return thread;
}
