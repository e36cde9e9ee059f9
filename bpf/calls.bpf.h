/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Allocator calls: what a function was asked for at its entry, and what became of it at its return.
 *
 * Only the outermost call of a thread counts: what an allocator does within a call (realloc calling malloc,
 * memalign calling free) is its own affair. A call is named by the address of its return slot.
 */
#pragma once

static __always_inline u32 cookie_field(u64 cookie, enum cookie_shift shift)
{
	return cookie >> shift & 15;
}

/* The thread's state, made if need be, or NULL: another process's thread, or no memory (counted). */
static __always_inline struct thread *current_thread(u64 lost_bytes)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, 0);

	if (thread && thread->process)
		return thread;

	/* Probes before Linux 6.10 can fire in other processes. */
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u32 *slot = bpf_map_lookup_elem(&process_slots, &tgid);

	if (!slot)
		return NULL;
	thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread) {
		count_lost(COUNTER_LOST_THREAD_STATE, lost_bytes);
		return NULL;
	}
	thread->process = *slot + 1;
	return thread;
}

/*
 * Whether the call that the thread is known to be in is still going on, given a new call's return slot.
 *
 * A call above the new one on the stack is, if its return slot still holds the return probe's trampoline
 * and not an address of code. (At the same slot: the outer function jumped to the new one.)
 */
static __always_inline bool is_nested(struct thread *thread, u64 slot)
{
	u64 outer = thread->call.return_slot;
	u64 return_address;

	if (!outer)
		return false;
	if (slot <= outer && bpf_probe_read_user(&return_address, 8, (void *)outer) == 0) {
		u32 process = thread->process - 1;
		u32 list = list_number(process, generation_of(process));
		struct mapping *mapping = find_mapping(list, return_address);

		if (!mapping || mapping->kind == MAPPING_TRAMPOLINE)
			return true;
	}
	count(COUNTER_ABANDONED_CALL);
	thread->call.return_slot = 0;
	return false;
}

/* Saturates: a product that overflows is a size that no allocator can give. */
static __always_inline u64 requested_size(struct pt_regs *ctx, u64 cookie)
{
	u64 size = argument(ctx, cookie_field(cookie, COOKIE_SIZE));
	u32 count_argument = cookie_field(cookie, COOKIE_COUNT);

	if (!count_argument || !size)
		return size;

	u64 most = ~0ULL / size;
	u64 number = argument(ctx, count_argument);

	/* Or the compiler makes this a 128-bit multiplication, which BPF has not. */
	OPAQUE(most);
	return number > most ? ~0ULL : size * number;
}

/* Entry of a function that allocates or resizes. Returns whether its return is of interest. */
static __always_inline bool begin_call(struct pt_regs *ctx, u64 cookie)
{
	u64 size = requested_size(ctx, cookie);
	struct thread *thread = current_thread(size);

	if (!thread)
		return false;
	count(COUNTER_PROBE_HITS);
	if (is_nested(thread, return_slot(ctx)))
		return false;

	struct call *call = &thread->call;

	call->size = size;
	call->result_at = argument(ctx, cookie_field(cookie, COOKIE_RESULT));
	call->old_address = argument(ctx, cookie_field(cookie, COOKIE_POINTER));
	call->old_known = false;
	call->function = (cookie >> COOKIE_FUNCTION) & (MAX_FUNCTIONS - 1);
	call->role = cookie_field(cookie, COOKIE_ROLE);
	/* The old block leaves now: once it is freed inside, its address may be another thread's new block. */
	if (call->role == ROLE_RESIZE && call->old_address)
		call->old_known = take_block(thread->process - 1, call->old_address, &call->old);
	call->return_slot = return_slot(ctx);
	return true;
}

/* What a resize did to the old block: gone, or, if the call failed, back in the table. */
static __always_inline void finish_resize(u32 slot, struct call *call, u64 address)
{
	if (!call->old_address)
		return;
	/* Size 0 is a request to free: null is then no failure. */
	if (!address && call->size) {
		if (call->old_known)
			insert_block(slot, call->old_address, &call->old);
		return;
	}
	if (call->old_known)
		add_freed(&call->old);
	else
		count(COUNTER_UNKNOWN_FREE);
}

/* The address of the new block, 0 when the call failed or the address could not be read. */
static __always_inline u64 new_address(struct pt_regs *ctx, struct call *call)
{
	u64 address = 0;

	if (!call->result_at)
		return result(ctx);
	if ((u32)result(ctx) != 0)
		return 0;
	if (bpf_probe_read_user(&address, 8, (void *)call->result_at))
		count_lost(COUNTER_LOST_RESULT_FAULT, call->size);
	return address;
}

/* Return of a function that allocates or resizes. */
static __always_inline void finish_call(struct pt_regs *ctx)
{
	struct thread *thread = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);

	if (!thread || thread->call.return_slot != returned_slot(ctx))
		return;

	struct call *call = &thread->call;
	u32 slot = thread->process - 1;
	u64 address = new_address(ctx, call);

	call->return_slot = 0;
	if (call->role == ROLE_RESIZE)
		finish_resize(slot, call, address);
	if (address)
		record_block(slot, address, call->size, current_stack(ctx, slot, call->function));
	else if (call->role != ROLE_RESIZE || call->size)
		count(COUNTER_FAILED);
}

/* Entry of a function that frees. */
static __always_inline void free_call(struct pt_regs *ctx, u64 cookie)
{
	u64 address = argument(ctx, cookie_field(cookie, COOKIE_POINTER));

	if (!address)
		return;

	struct thread *thread = current_thread(0);

	if (!thread || is_nested(thread, return_slot(ctx)))
		return;
	free_block(thread->process - 1, address);
}
