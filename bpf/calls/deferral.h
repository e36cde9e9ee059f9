/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Deferral of walks to user space: a walk that meets code whose table is not in the kernel yet is sent there to be
 * finished, with a copy of the stack and everything else that it depends on (src/session/deferred.rs).
 *
 * The block needs a stack record at once. It gets a stand-in, an index of totals beyond those of stored stacks, which
 * is used for this one walk; user space adds its totals to those of the stack that it finds, and gives it back when the
 * block is freed.
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

/* From the kernel's include/linux/mm.h and mm_types.h: the part needed here. */
enum {
	VM_EXEC = 1 << 2,
};

struct vm_area_struct___flags {
	unsigned long vm_flags;
} __attribute__((preserve_access_index));

/* The field's name and type are not part of any interface: an area whose flags are not known counts as code. */
static long note_code(struct task_struct *task, struct vm_area_struct___flags *area, bool *is_code)
{
	*is_code = !bpf_core_field_exists(area->vm_flags) || BPF_CORE_READ(area, vm_flags) & VM_EXEC;
	return 0;
}

/* Returns whether code is mapped at an address now. True if that is unknown because the mappings are being changed. */
static __always_inline bool may_be_code(u64 address)
{
	bool is_code = false;
	long failed = bpf_find_vma(bpf_get_current_task_btf(), address, note_code, &is_code, 0);

	return is_code || failed == -EBUSY;
}

/*
 * Returns whether user space may be able to finish a walk that ended for lack of something. False if the object's table
 * waits for something else; and false after a walk has requested the same, mappings or saves, in vain, until something
 * changes. Mappings have changed if code was mapped since where this walk has ended.
 */
static __always_inline bool may_be_finished(struct walk *walk, struct process *process)
{
	struct mapping *mapping;
	u64 requested;

	if (walk->end == END_ANONYMOUS_CODE || walk->list == NO_LIST || walk->list_state.changing)
		return true;
	mapping = find_mapping(walk->list, walk->pc - walk->pc_adjust);
	if (mapping && mapping->kind == MAPPING_PENDING)
		return false;
	requested = *(volatile u64 *)&process->reload_requested;
	if (walk->saves_wanted)
		return !(requested & RELOAD_SAVES_IN_VAIN);
	if (!(requested & RELOAD_IN_VAIN))
		return true;
	return walk->end == END_NO_MAPPING && may_be_code(walk->pc - walk->pc_adjust);
}

/* Copies one entry of the kernel's list. Returns the next entry, or NULL at the end of the list. */
static __always_inline struct return_instance___read *note_replaced(struct deferred_walk *deferred, u32 number,
								    struct return_instance___read *instance)
{
	struct replaced_address *to = &deferred->replaced[number & (DEFERRED_RETURN_PROBES - 1)];

	to->slot = BPF_CORE_READ(instance, stack);
	to->address = BPF_CORE_READ(instance, orig_ret_vaddr);
	deferred->replaced_count = number + 1;
	return BPF_CORE_READ(instance, next);
}

/*
 * Copies the return addresses that return probes have replaced; returns false if there are too many. Not static:
 * verified once, by itself.
 */
__noinline bool note_return_probes(struct deferred_walk *deferred)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();
	struct return_instance___read *instance = NULL;

	if (!deferred)
		return false;
	deferred->trampoline = trampoline_address();
	deferred->replaced_count = 0;
	if (!bpf_core_field_exists(task->utask) || !bpf_core_field_exists(instance->stack) ||
	    !bpf_core_field_exists(instance->orig_ret_vaddr))
		return true;
	instance = BPF_CORE_READ(task, utask, return_instances);
#pragma clang loop unroll(disable)
	for (u32 number = 0; number < DEFERRED_RETURN_PROBES && instance; number++)
		instance = note_replaced(deferred, number, instance);
	return !instance;
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
	deferred->python = wanted->python;
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

/* Takes the parts that this CPU sent last, or those of another CPU; returns NULL if all that it tries are taken. */
static __always_inline struct sent_stack *take_sent_stack(u32 *key)
{
	u32 first = bpf_get_smp_processor_id();

	for (u32 number = 0; number < SCRATCH_PER_CPU; number++) {
		*key = (first + number) & (SENT_STACKS - 1);

		struct sent_stack *sent = bpf_map_lookup_elem(&sent_stacks, key);

		if (sent && !__sync_lock_test_and_set(&sent->taken, 1))
			return sent;
	}
	return NULL;
}

static __always_inline void release_sent_stack(struct sent_stack *sent)
{
	asm volatile("" ::: "memory");
	*(volatile u64 *)&sent->taken = 0;
}

/* Returns 0 if the words of two parts are the same. Without branches, for the verifier. */
static __always_inline u64 difference(u64 *a, u64 *b)
{
	u64 difference = 0;

#pragma clang loop unroll(disable)
	for (u32 number = 0; number < PART_WORDS; number++)
		difference |= a[number] ^ b[number];
	return difference;
}

/*
 * Reads a part of the stack, and lists it for sending unless the same was sent last for its place. Some parts cannot be
 * read, as a large frame may be only partly in use. Not static: verified once, by itself.
 */
__noinline int copy_part(struct deferred_walk *deferred, struct sent_stack *sent, u32 number)
{
	if (!deferred || !sent)
		return 0;

	u64 at = deferred->stack_start + number * STACK_PART;
	u64 failed = bpf_probe_read_user(sent->read, STACK_PART, (void *)at) != 0;
	u32 place = at / STACK_PART;

	deferred->unread[number / PARTS_PER_WORD & (STACK_PARTS / PARTS_PER_WORD - 1)] |= failed << number % PARTS_PER_WORD;
	if (failed)
		return 0;
	OPAQUE(place);
	place &= STACK_PARTS - 1;

	struct stack_part *part = &sent->parts[place];

	if (difference(sent->read, part->words)) {
		part->place = place;
		bpf_probe_read_kernel(part->words, STACK_PART, sent->read);
		sent->is_unsent[place] = 1;
	}
	if (sent->is_unsent[place]) {
		sent->unsent[sent->unsent_count & (STACK_PARTS - 1)] = place;
		sent->unsent_count++;
	}
	return 0;
}

/* Sends a walk and the listed parts. Returns false if the queue has no room; the parts then remain unsent. */
static __always_inline bool send_walk(struct deferred_walk *deferred, struct sent_stack *sent)
{
	u32 parts = sent->unsent_count;
	struct bpf_dynptr record;

	if (bpf_ringbuf_reserve_dynptr(&deferred_walks, sizeof(*deferred) + parts * sizeof(struct stack_part), 0, &record)) {
		bpf_ringbuf_discard_dynptr(&record, 0);
		return false;
	}
	bpf_dynptr_write(&record, 0, deferred, sizeof(*deferred), 0);
#pragma clang loop unroll(disable)
	for (u32 number = 0; number < STACK_PARTS; number++) {
		if (number >= parts)
			break;

		u32 place = sent->unsent[number];
		struct stack_part *part = &sent->parts[place];

		bpf_dynptr_write(&record, sizeof(*deferred) + number * sizeof(*part), part, sizeof(*part), 0);
		sent->is_unsent[place] = 0;
	}
	bpf_ringbuf_submit_dynptr(&record, 0);
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

struct vm_area_struct___end {
	unsigned long vm_end;
} __attribute__((preserve_access_index));

static long note_area_end(struct task_struct *task, struct vm_area_struct___end *area, u64 *end)
{
	*end = BPF_CORE_READ(area, vm_end);
	return 0;
}

/*
 * Returns the end of the mapping at an address; 0 if unknown. Not static, so that it is verified once: else Linux 6.1
 * would verify its callers for each of its outcomes.
 */
__noinline u64 mapping_end(u64 address)
{
	u64 end = 0;

	bpf_find_vma(bpf_get_current_task_btf(), address, note_area_end, &end, 0);
	return end;
}

/*
 * Returns how many parts of the stack to copy from `start` on: up to where the thread's stack was last found to end, or
 * to the end of the first thread's stack. (A known end can be of an earlier program of the process, whose stack ended
 * elsewhere.) Without a known end, up to the end of the mapping, which mostly is the stack's; USUAL_PARTS if that is
 * too far away.
 */
static __always_inline u32 wanted_parts(struct scratch *scratch, u64 start)
{
	struct task_struct___stack *task = (void *)bpf_get_current_task_btf();
	u64 first = BPF_CORE_READ(task, mm, start_stack);
	u64 end = scratch->wanted.habits.stack_end;

	if (first - start <= STACK_PARTS * STACK_PART && end < first)
		end = first;
	if (end < start) {
		end = mapping_end(start);
		if (end - start > STACK_PARTS * STACK_PART)
			return USUAL_PARTS;
	}

	u64 parts = (end - start + STACK_PART - 1) / STACK_PART;

	return parts < STACK_PARTS ? parts : STACK_PARTS;
}

/* Sends the walk of scratch `key`, which is already described, with its stack. Not static: verified once, by itself. */
__noinline bool send_with_stack(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	struct deferred_walk *deferred;
	struct sent_stack *sent;
	u32 number;
	bool is_sent;

	if (!scratch)
		return false;
	deferred = &scratch->deferred;
	sent = take_sent_stack(&number);
	if (!sent)
		return false;

	u64 start = scratch->fast.walk.at_probe[REGISTER_SP] & ~(u64)(STACK_PART - 1);

	deferred->stack_start = start;
	deferred->parts = wanted_parts(scratch, start);
	deferred->sent_stack = number;
	__builtin_memset(deferred->unread, 0, sizeof(deferred->unread));
	sent->unsent_count = 0;
	for (u32 part = 0; part < STACK_PARTS && part < deferred->parts; part++)
		copy_part(deferred, sent, part);
	is_sent = send_walk(deferred, sent);
	release_sent_stack(sent);
	return is_sent;
}

/* Takes a stand-in: one that was given back, else one that was never used. Returns false if there is none. */
static __always_inline bool take_stand_in(u32 *stand_in)
{
	u64 unused;

	if (!bpf_map_pop_elem(&stand_ins, stand_in))
		return true;
	if (usage.stand_ins >= stand_in_count)
		return false;
	unused = __sync_fetch_and_add(&usage.stand_ins, 1);
	*stand_in = stack_capacity + unused;
	return unused < stand_in_count;
}

/*
 * Sends the walk that scratch `key` has just done to user space, if that may finish it. Returns the index of the
 * stand-in, or NO_STACK. Not static: verified once, by itself.
 */
__noinline u32 defer_walk(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	u32 stand_in;

	if (!scratch)
		return NO_STACK;
	if (!may_be_finished(&scratch->fast.walk, process_at(slot_of(scratch->wanted.owner)))) {
		/*
		 * Counted, as the saves that a walk lacks do exist; a mapping need not, as the address may be garbage.
		 */
		if (scratch->fast.walk.saves_wanted)
			count(COUNTER_LOST_DEFERRAL);
		return NO_STACK;
	}
	if (!take_stand_in(&stand_in)) {
		count(COUNTER_LOST_DEFERRAL);
		return NO_STACK;
	}
	if (describe_walk(scratch, stand_in) && send_with_stack(key))
		return stand_in;
	count(COUNTER_LOST_DEFERRAL);
	bpf_map_push_elem(&stand_ins, &stand_in, BPF_ANY);
	return NO_STACK;
}
