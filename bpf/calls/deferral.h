/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Walks that user space finishes: one that meets code whose table is not in the kernel yet is sent there, with a copy of the stack
 * and all else that it depends on (src/session/deferred).
 *
 * The block needs a stack record at once. It gets a stand-in, an index of totals beyond those of stored stacks, which is used for
 * this one walk; user space adds its totals to those of the stack that it finds, and gives it back when the block is freed.
 */
#pragma once

#include "calls/deferred_walk.h"
#include "config.h"
#include "counters.h"
#include "fast/memo.h"
#include "kernel.h"
#include "maps.h"
#include "process/processes.h"
#include "store/scratch.h"
#include "walk/mappings.h"
#include "walk/return_probes.h"

/*
 * Returns whether user space may know more than the kernel about the code where the walk has ended. Not of an object that is known to have
 * no table; nor, until something changes, after a walk has asked for what was not there.
 */
static __always_inline bool may_be_finished(struct walk *walk, struct process *process)
{
	struct mapping *mapping;

	if (walk->end != END_TABLE_NOT_LOADED && walk->end != END_NO_MAPPING)
		return false;
	if (walk->list == NO_LIST || walk->list_state.changing)
		return true;
	mapping = find_mapping(walk->list, walk->pc - walk->pc_adjust);
	if (mapping && mapping->kind == MAPPING_PENDING)
		return false;
	return !(*(volatile u64 *)&process->reload_requested & RELOAD_IN_VAIN);
}

/* State of copying the return addresses that return probes have replaced. */
struct replaced_search {
	struct return_instance___read *instance;
	struct deferred_walk *deferred;
};

static long note_replaced(u64 number, struct replaced_search *search)
{
	struct return_instance___read *instance = search->instance;
	struct replaced_address *to = &search->deferred->replaced[number & (DEFERRED_RETURN_PROBES - 1)];

	if (!instance)
		return 1;
	to->slot = BPF_CORE_READ(instance, stack);
	to->address = BPF_CORE_READ(instance, orig_ret_vaddr);
	search->deferred->replaced_count = number + 1;
	search->instance = BPF_CORE_READ(instance, next);
	return 0;
}

/* Copies them all; returns false if they are too many. */
static __always_inline bool note_return_probes(struct deferred_walk *deferred)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();
	struct replaced_search search = { .deferred = deferred };

	deferred->trampoline = trampoline_address();
	deferred->replaced_count = 0;
	if (!bpf_core_field_exists(task->utask) || !bpf_core_field_exists(search.instance->stack) ||
	    !bpf_core_field_exists(search.instance->orig_ret_vaddr))
		return true;
	search.instance = BPF_CORE_READ(task, utask, return_instances);
	bpf_loop(DEFERRED_RETURN_PROBES, note_replaced, &search, 0);
	return !search.instance;
}

/* Describes the walk of a scratch, all but the stack. Returns false if there is no room for that. */
static __always_inline bool describe_walk(struct scratch *scratch, u32 stand_in)
{
	struct deferred_walk *deferred = &scratch->deferred;
	struct wanted_stack *wanted = &scratch->wanted;
	struct walk *walk = &scratch->fast.walk;

	deferred->at = bpf_ktime_get_ns();
	deferred->instance = instance_of(wanted->owner);
	deferred->stand_in = stand_in;
	deferred->function = wanted->function;
	deferred->epoch = epoch_of(wanted->view);
	deferred->end = walk->end;
	deferred->frame_count = walk->frame_count;
	deferred->end_pc = walk->pc;
	deferred->pc = wanted->pc;
	deferred->link = wanted->link.lr;
	deferred->link_known = wanted->link.known;
	bpf_probe_read_kernel(deferred->registers, sizeof(deferred->registers), walk->at_probe);
	bpf_probe_read_kernel(deferred->frames, sizeof(deferred->frames), walk->frames);
	return note_return_probes(deferred);
}

/* Copies `bytes` of the stack from `start` on, at most `size`, a constant; returns a bit for each piece that can be read. Not all can: a
 * large frame may be in use in part only. */
static __always_inline u64 copy_stack(u8 *to, u64 start, u64 bytes, u32 size)
{
	u64 pieces = 0;

#pragma clang loop unroll(disable)
	for (u32 at = 0; at < size; at += STACK_PIECE) {
		if (at >= bytes)
			break;

		u64 is_read = !bpf_probe_read_user(to + at, STACK_PIECE, (void *)(start + at));

		pieces |= is_read << at / STACK_PIECE;
	}
	return pieces;
}

/* Sends the walk with a copy of `bytes` of the stack, at most `size`, a constant. Returns false if there is no room. */
static __always_inline bool send_walk(struct deferred_walk *deferred, u64 bytes, u32 size)
{
	u64 start = deferred->stack_start;
	u8 *to = bpf_ringbuf_reserve(&deferred_walks, sizeof(*deferred) + size, 0);

	if (!to)
		return false;
	deferred->stack_pieces = copy_stack(to + sizeof(*deferred), start, bytes, size);
	bpf_probe_read_kernel(to, sizeof(*deferred), deferred);
	bpf_ringbuf_submit(to, 0);
	return true;
}

/* From the kernel's include/linux/mm_types.h: the fields needed here. */
struct mm_struct___stack {
	/* Stack pointer when the program began: the end of the first thread's frames. */
	unsigned long start_stack;
} __attribute__((preserve_access_index));

struct task_struct___stack {
	struct mm_struct___stack *mm;
} __attribute__((preserve_access_index));

/* Returns how many bytes of the stack from `start` on are to be copied: to where the thread's stack was last found to end. */
static __always_inline u64 wanted_bytes(struct scratch *scratch, u64 start)
{
	struct task_struct___stack *task = (void *)bpf_get_current_task_btf();
	u64 end = scratch->wanted.habits.stack_end;

	if (end < start) {
		end = BPF_CORE_READ(task, mm, start_stack);
		if (end < start || end - start > LONGEST_COPY)
			return USUAL_COPY;
	}
	return end - start;
}

static __always_inline bool send_with_stack(struct scratch *scratch)
{
	struct deferred_walk *deferred = &scratch->deferred;
	u64 start = scratch->fast.walk.at_probe[REGISTER_SP] & ~(u64)(STACK_PIECE - 1);
	u64 bytes = wanted_bytes(scratch, start);

	deferred->stack_start = start;
	/* The queue takes records of constant sizes only. */
	if (bytes <= 2 * STACK_PIECE)
		return send_walk(deferred, bytes, 2 * STACK_PIECE);
	if (bytes <= 4 * STACK_PIECE)
		return send_walk(deferred, bytes, 4 * STACK_PIECE);
	if (bytes <= 6 * STACK_PIECE)
		return send_walk(deferred, bytes, 6 * STACK_PIECE);
	if (bytes <= 8 * STACK_PIECE)
		return send_walk(deferred, bytes, 8 * STACK_PIECE);
	if (bytes <= 16 * STACK_PIECE)
		return send_walk(deferred, bytes, 16 * STACK_PIECE);
	return send_walk(deferred, bytes, LONGEST_COPY);
}

/*
 * Sends the walk that scratch `key` has just done to user space, if that may finish it. Returns the index of the stand-in, or NO_STACK.
 * Not static: verified once, by itself.
 */
__noinline u32 defer_walk(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	u32 stand_in;

	if (!scratch || !may_be_finished(&scratch->fast.walk, process_at(slot_of(scratch->wanted.owner))))
		return NO_STACK;
	if (bpf_map_pop_elem(&stand_ins, &stand_in)) {
		count(COUNTER_LOST_DEFERRAL);
		return NO_STACK;
	}
	if (describe_walk(scratch, stand_in) && send_with_stack(scratch)) {
		count(COUNTER_DEFERRED_WALK);
		return stand_in;
	}
	count(COUNTER_LOST_DEFERRAL);
	bpf_map_push_elem(&stand_ins, &stand_in, BPF_ANY);
	return NO_STACK;
}
