/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Allocator calls: arguments at a function's entry, results at its return.
 *
 * Only the outermost call of a thread is recorded: calls within it (realloc calling malloc, memalign calling free) are
 * internal to the allocator. A call is identified by its return slot (calls/return_address.h).
 */
#pragma once

#include "calls/call_events.h"
#include "calls/cookie.h"
#include "calls/current_call.h"
#include "calls/current_stack.h"
#include "calls/moving.h"
#include "calls/nesting.h"
#include "calls/regs.h"
#include "calls/return_address.h"
#include "calls/sampling.h"
#include "calls/strings.h"
#include "calls/threads.h"
#include "config.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/freed.h"
#include "process/pids.h"
#include "process/processes.h"
#include "store/blocks.h"
#include "store/life_spans.h"
#include "walk/return_probes.h"

/* Returns whether a probe is at a `ret`, and not at a function's entry. */
static __always_inline bool is_at_ret(u64 cookie)
{
	return cookie >> COOKIE_AT_RET & 1;
}

/*
 * Returns whether a function that begins is called within the thread's current call; forgets that call if it is over.
 */
static __always_inline bool is_nested(struct thread *thread, struct pt_regs *ctx, u64 cookie)
{
	struct call *call = &thread->call;

	if (!call->return_slot)
		return false;
	if (goes_on(call, thread->owner, way_back(ctx), program_counter(ctx), cookie >> COOKIE_MODULE) &&
	    !(calls_move && call->moves && has_moved(thread, ctx)))
		return true;
	forget_call(thread);
	return false;
}

/* Returns the requested size; saturates on overflow, as no allocator can provide that size. */
static __always_inline u64 requested_size(struct pt_regs *ctx, u64 cookie)
{
	u64 size = argument(ctx, size_argument(cookie));
	u32 count_argument = cookie_field(cookie, COOKIE_COUNT);

	if (cookie >> COOKIE_STRING & 1)
		return string_size(size, count_argument ? argument(ctx, count_argument) : ~0ULL);
	if (!count_argument || !size)
		return size;

	u64 most = ~0ULL / size;
	u64 number = argument(ctx, count_argument);

	/* Keeps the compiler from using a 128-bit multiplication, which BPF lacks. */
	OPAQUE(most);
	return number > most ? ~0ULL : size * number;
}

static __always_inline bool resizes(enum role role)
{
	return role == ROLE_RESIZE || role == ROLE_RESIZE_OR_FREE || role == ROLE_RESIZE_IN_PLACE;
}

/* Returns whether `module` is the only one with probed functions. */
static __always_inline bool is_probed_alone(u32 module)
{
	return *(volatile u64 *)&probed.module == (u64)module + 1;
}

/* Returns whether the end of a call can be detected without a probe at its return. */
static __always_inline bool can_go_unseen(u64 cookie, enum call_end end)
{
	return end == SEEN_BY_RETURN_PROBE && cookie >> COOKIE_LEAF & 1;
}

/* Returns whether -z and -Z exclude a block of `size`, and counts it. */
static __always_inline bool is_left_out(u64 size)
{
	if (!is_filtered(size))
		return false;
	count(COUNTER_FILTERED);
	count_by(COUNTER_FILTERED_BYTES, size);
	return true;
}

/* Returns the stored weight of the block that a call will allocate; 0 if it is not to be recorded. */
static __always_inline u32 weight_of(struct thread *thread, u64 size)
{
	return is_left_out(size) ? 0 : chosen_weight(&thread->sampler, size);
}

/* Counts a call as lost: its return will not be seen, so its effect on blocks is unknown. */
static __always_inline void lose_unseen_call(u32 instance, struct call *call)
{
	if (call->weight)
		lose_call(COUNTER_LOST_RETURN_PROBE, call->size, call->weight, call->function);
	doubt(instance, DOUBT_UNSEEN_END);
	if (call->old_known)
		return_doubtful_block(instance, call->old_address, &call->old);
	call->old_known = false;
	call->end = CALL_LOST;
}

/*
 * Returns whether the return of a nested call is needed: if a function whose `ret` instructions are probed jumps to one
 * with a return probe, the return of the latter ends the call.
 */
static __always_inline bool continues_by_jump(struct thread *thread, struct pt_regs *ctx, enum call_end end)
{
	struct call *call = &thread->call;

	if (call->end != SEEN_BY_RET || end != SEEN_BY_RETURN_PROBE || call->return_slot != return_slot(ctx))
		return false;
	if (return_probes_are_exhausted((void *)bpf_get_current_task_btf())) {
		lose_unseen_call(instance_of(thread->owner), call);
		return false;
	}
	call->end = SEEN_BY_RETURN_PROBE;
	return true;
}

/* Handles the entry of a function that allocates or resizes. Returns whether its return must be probed. */
static __always_inline bool begin_call(struct pt_regs *ctx, u64 cookie)
{
	u64 size = requested_size(ctx, cookie);
	u32 function = (cookie >> COOKIE_FUNCTION) & (MAX_FUNCTIONS - 1);
	enum call_end end = cookie >> COOKIE_BY_RET & 1 ? SEEN_BY_RET : SEEN_BY_RETURN_PROBE;
	void *task = bpf_get_current_task_btf();
	struct thread *thread = thread_of(task);
	u64 owner = current_owner(thread);

	if (!owner)
		return false;
	thread = owned_thread(thread, owner);
	if (!thread) {
		lose_call(COUNTER_LOST_THREAD_STATE, size, WEIGHT_ONE, function);
		doubt(instance_of(owner), DOUBT_LOST_BLOCK);
		return false;
	}
	count(COUNTER_PROBE_HITS);
	/* From here on, an earlier call of the thread is over: is_nested has forgotten it. */
	if (is_nested(thread, ctx, cookie)) {
		/* The allocator's own records count as unused, wherever they are. */
		if (!(cookie >> COOKIE_FOR_RECORDS & 1) || (u32)(cookie >> COOKIE_MODULE) != thread->call.module)
			nested_allocation(instance_of(owner), thread->call.size, size);
		return continues_by_jump(thread, ctx, end);
	}

	struct call *call = &thread->call;
	enum role role = cookie_field(cookie, COOKIE_ROLE);
	u32 weight = weight_of(thread, size);
	u64 newest = thread->newest;

	thread->newest = 0;

	/* An unrecorded call need not even be remembered if no probed function can be called within it. */
	if (!weight && !resizes(role) && can_go_unseen(cookie, end) && is_probed_alone(cookie >> COOKIE_MODULE))
		return false;
	if (call_trace && weight)
		trace_call(CALL_BEGINS, instance_of(owner), 0, size, MAX_FUNCTIONS + function);
	call->size = size;
	call->weight = weight;
	call->result_at = argument(ctx, cookie_field(cookie, COOKIE_RESULT));
	call->old_address = argument(ctx, cookie_field(cookie, COOKIE_POINTER));
	call->old_known = false;
	call->old_is_newest = newest == call->old_address;
	call->function = function;
	call->role = role;
	/* Taken at the entry: as soon as the call has freed it, another thread can allocate the same address. */
	if (resizes(role) && call->old_address) {
		call->old_freed_at = freeing_time();
		call->old_known = take_block(instance_of(owner), call->old_address, &call->old,
					     &thread->lifetimes);
	}
	call->end = end;
	if (end == SEEN_BY_RETURN_PROBE && return_probes_are_exhausted(task))
		lose_unseen_call(instance_of(owner), call);
	call->probed_at = program_counter(ctx);
	call->module = cookie >> COOKIE_MODULE;
	/*
	 * An unrecorded call without a known old block needs no return. It is remembered all the same, so that calls
	 * within it are recognized as nested; is_nested detects its end by itself. A known old block does need the
	 * return, which tells whether the block was freed.
	 */
	if (!weight && !call->old_known && can_go_unseen(cookie, end))
		call->end = CALL_UNTRACKED;
	call->return_slot = return_slot(ctx);
	/* A call with a return probe is recognized by the trampoline instead. */
	if (call->end != SEEN_BY_RETURN_PROBE && !read_return_address(way_back(ctx), &call->return_address))
		call->return_address = 0;
	call->moves = false;
	if (calls_move && cookie >> COOKIE_MOVES & 1)
		keep_call(thread);
	return call->end != CALL_UNTRACKED && call->end != CALL_LOST;
}

/* Records the fate of a resize's old block: freed, or, if the call failed, recorded again. */
static __always_inline void finish_resize(u32 instance, struct thread *thread, u64 address)
{
	struct call *call = &thread->call;

	if (!call->old_address)
		return;
	/* Size 0 requests a free: NULL is then not a failure. */
	if (!address && call->size && call->role != ROLE_RESIZE_OR_FREE) {
		if (call->old_known && !return_block(instance, call->old_address, &call->old))
			doubt(instance, DOUBT_LOST_BLOCK);
		return;
	}
	if (!call->old_known) {
		note_unknown_free(instance, call->old_address);
		doubt_if_freed(instance, call->old_address);
		return;
	}
	if (address != call->old_address)
		note_freed(instance, call->old_address, call->old.size, call->old_freed_at);
	add_freed(&call->old);
	count_life_span(&call->old, thread, call->old_is_newest);
	trace_call(BLOCK_FREED, instance, call->old_address, call->old.size, call->old.stack);
}

/* Reads the address of the new block, 0 if the call failed. Returns false if it cannot be read. */
static __always_inline bool read_result(struct pt_regs *ctx, struct call *call, u64 *address)
{
	*address = 0;
	if (call->role == ROLE_RESIZE_IN_PLACE) {
		*address = result(ctx) >= call->size ? call->old_address : 0;
		return true;
	}
	if (!call->result_at) {
		*address = result(ctx);
		return true;
	}
	/* The address is stored on success only: after a failure, the location can hold that of another block. */
	if ((u32)result(ctx) != 0)
		return true;
	return bpf_probe_read_user(address, 8, (void *)call->result_at) == 0;
}

/* Records the result of the thread's current call, which has returned, or is about to return, to `caller`. */
static __always_inline void finish_call(struct pt_regs *ctx, struct thread *thread, struct caller caller)
{
	struct call *call = &thread->call;
	u32 instance = instance_of(thread->owner);
	u64 address;

	if (calls_move && call->moves)
		drop_call(thread);
	call->return_slot = 0;
	if (call->end == CALL_UNTRACKED || call->end == CALL_LOST)
		return;
	if (!read_result(ctx, call, &address)) {
		if (call->weight)
			lose_call(COUNTER_LOST_RESULT_FAULT, call->size, call->weight, call->function);
		doubt(instance, DOUBT_LOST_BLOCK);
		return;
	}
	if (resizes(call->role))
		finish_resize(instance, thread, address);
	if (address && call->weight) {
		struct block block = { .size = call->size, .weight = call->weight, .allocated_at = time_of(thread) };

		block.stack = current_stack(ctx, &thread->habits, caller, thread->owner, call->function);
		if (!record_block(instance, address, &block, &thread->lifetimes))
			doubt(instance, DOUBT_LOST_BLOCK);
		thread->newest = address;
	} else if (!address && (!resizes(call->role) || call->size)) {
		count(COUNTER_FAILED);
		if (call_trace && call->weight)
			trace_call(CALL_FAILED, instance, 0, call->size, MAX_FUNCTIONS + call->function);
	}
}

/* Returns the address that a function is about to return to, at its `ret`. */
static __always_inline u64 returns_to(struct pt_regs *ctx, struct call *call)
{
	u64 address, replaced;

	if (!read_return_address(way_back(ctx), &address))
		address = call->return_address;
	if (!is_trampoline(address))
		return address;
	replaced = replaced_return_address(return_slot(ctx));
	return replaced ? replaced : address;
}

/*
 * Handles the end of a function that allocates or resizes: at its `ret`, where the stack pointer equals that at the
 * entry, or once it has returned.
 */
static __always_inline void end_call(struct pt_regs *ctx, bool at_ret)
{
	struct thread *thread = known_thread();
	struct caller caller = { .pc = program_counter(ctx), .sp = ctx->sp };

	if (at_ret)
		count(COUNTER_RET_HITS);
	if (at_ret && calls_move)
		thread = take_up_call(thread, ctx);
	if (!thread || thread->call.return_slot != (at_ret ? return_slot(ctx) : returned_slot(ctx)))
		return;
	if (at_ret)
		caller = (struct caller){ .pc = returns_to(ctx, &thread->call), .sp = callers_sp(ctx) };
	finish_call(ctx, thread, caller);
}

/*
 * Returns whether a function that frees is called by its own module: the C library frees its own blocks and, when a
 * thread ends, those in glibc's thread cache, which the program had freed before.
 */
static __always_inline bool is_called_by_own_module(struct pt_regs *ctx, u64 owner)
{
	struct mapping *mapping = find_mapping(list_of(view_of(owner)), program_counter(ctx));
	u64 caller;

	if (!mapping || !read_return_address(way_back(ctx), &caller))
		return false;
	return caller >= mapping->start && caller < mapping->end;
}

/*
 * Returns whether a free of `address` is part of the thread's last free: in a function that the last one calls, as
 * sized forms of free call the plain one, or in the same function, entered again. (free of glibc 2.42 and later jumps
 * back to its own beginning once it has prepared the thread's cache.) Only affects counters: the block has already left
 * the table.
 */
static __always_inline bool is_freed_within(struct thread *thread, struct pt_regs *ctx, u64 address)
{
	u64 slot = return_slot(ctx);
	u64 caller;

	if (thread->freed != address || slot > thread->freed_slot)
		return false;
	if (slot == thread->freed_slot) {
		/* The function has begun again once; if it begins once more, that is another free. */
		if (program_counter(ctx) == thread->freed_at)
			thread->freed = 0;
		return true;
	}
	return read_return_address(way_back(ctx), &caller) && are_in_one_mapping(thread->owner, caller, thread->freed_at);
}

/* Remembers a free of `address`, for functions that the freeing one calls or jumps to. */
static __always_inline void remember_free(struct thread *thread, struct pt_regs *ctx, u64 address)
{
	thread->freed = address;
	thread->freed_slot = return_slot(ctx);
	thread->freed_at = program_counter(ctx);
}

/* Handles the entry of a function that frees. */
static __always_inline void free_call(struct pt_regs *ctx, u64 cookie)
{
	u64 address = argument(ctx, cookie_field(cookie, COOKIE_POINTER));

	if (!address)
		return;

	struct thread *thread = known_thread();
	u64 owner = current_owner(thread);

	if (!owner || (thread && is_nested(thread, ctx, cookie)))
		return;
	/* A thread that has only freed gets a state, too, since its first free can begin again. */
	if (!thread)
		thread = owned_thread(NULL, owner);

	struct block block;
	u64 freed_at = freeing_time();

	if (free_block(instance_of(owner), address, &block, thread ? &thread->lifetimes : NULL)) {
		note_freed(instance_of(owner), address, block.size, freed_at);
		count_life_span(&block, thread, thread && thread->newest == address);
		if (thread) {
			thread->newest = 0;
			remember_free(thread, ctx, address);
		}
		return;
	}
	if (thread && is_freed_within(thread, ctx, address))
		return;
	if (thread)
		remember_free(thread, ctx, address);
	note_unknown_free(instance_of(owner), address);
	if (!every_block_is_recorded())
		return;
	if (is_called_by_own_module(ctx, owner))
		count(COUNTER_OWN_UNKNOWN_FREE);
	else
		doubt_if_freed(instance_of(owner), address);
}
