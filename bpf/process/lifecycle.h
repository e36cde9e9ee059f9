/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Begin and end of instances: the effects of fork, exec and exit on slots. Exec and exit are handled in their process,
 * when no probe of the old instance can run: at exec all other threads are gone, at exit the last one is.
 *
 * A process that shares another's memory (vfork, posix_spawn, clone) has the owner of that process until it execs:
 * their blocks are the same.
 */
#pragma once

#include "calls/calls.h"
#include "calls/regs.h"
#include "config.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/changes.h"
#include "process/freed.h"
#include "process/pids.h"
#include "process/processes.h"
#include "python/codes.h"
#include "store/block_table.h"
#include "store/young.h"

/* Fields read of the kernel's structures; relocated to those of the running kernel. */
struct mm_struct___read {
	int map_count;
	unsigned long start_code;
	unsigned long end_code;
} __attribute__((preserve_access_index));

struct signal_struct___read {
	struct {
		int counter;
	} live;
	struct mm_struct___read *oom_mm;
} __attribute__((preserve_access_index));

struct task_struct___read {
	int pid;
	int tgid;
	int exit_code;
	struct mm_struct___read *mm;
	struct signal_struct___read *signal;
} __attribute__((preserve_access_index));

/* Properties of an instance that begins. */
struct beginning {
	u32 tgid;
	enum instance_origin origin;
	u32 parent;
	u32 parent_epoch;
	/* Slot of the instance that it was forked from. */
	u32 parent_slot;
	/* See struct process. */
	u64 borrowed;
	u32 lender;
	/* Set if a change was announced that the borrowed list does not contain. */
	bool changing;
	bool by_other_thread;
	bool without_loader;
};

static __always_inline struct instance *record_of(u32 instance)
{
	return &instances[instance & (MAX_INSTANCES - 1)];
}

/* Returns an unused instance number, or 0 if none is left. */
static __always_inline u32 new_instance(void)
{
	if (numbers.next_instance >= MAX_INSTANCES)
		return 0;

	u64 number = __sync_fetch_and_add(&numbers.next_instance, 1);

	return number < MAX_INSTANCES ? number : 0;
}

static __always_inline void end_instance(u32 instance, enum instance_end end)
{
	*(volatile u8 *)&record_of(instance)->end = end;
}

static __always_inline void record_instance(u32 instance, u32 slot, struct beginning *beginning)
{
	struct instance *record = record_of(instance);

	record->slot = slot;
	record->parent = beginning->parent;
	record->parent_epoch = beginning->parent_epoch;
	record->origin = beginning->origin;
	record->by_other_thread = beginning->by_other_thread;
	record->without_loader = beginning->without_loader;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	/* A full barrier: a reader that sees the process id sees the other fields. */
	__sync_lock_test_and_set(&record->tgid, beginning->tgid);
}

/* A child of fork has its parent's interpreter at first. */
static __always_inline void begin_python(u32 instance, u32 slot, struct beginning *beginning)
{
	struct python_layout *to = python_layout_at(slot);
	struct python_layout *from = python_layout_at(beginning->parent_slot);

	to->instance = 0;
	if (beginning->origin != ORIGIN_FORKED || !from->instance || from->instance != beginning->parent)
		return;
	bpf_probe_read_kernel(to, sizeof(*to), from);
	__sync_lock_test_and_set(&to->instance, instance);
}

/*
 * Begins an instance in a slot that only the caller uses. Returns false if no instance number or entry in `owners` is
 * left.
 */
static __always_inline bool begin_in_slot(u32 slot, struct beginning *beginning)
{
	struct process *process = process_at(slot);
	u32 instance = new_instance();
	u32 tgid = beginning->tgid;
	u64 owner = make_owner(instance, slot);

	if (!instance)
		return false;
	process->borrowed = beginning->borrowed;
	process->lender = beginning->lender;
	process->tgid = tgid;
	process->reload_requested = 0;
	process->changes_announced = beginning->changing;
	process->changes_published = 0;
	process->changed_at = 0;
	if (reads_python)
		begin_python(instance, slot, beginning);
	record_instance(instance, slot, beginning);
	__sync_lock_test_and_set(&process->state, (u64)instance << 32);
	if (bpf_map_update_elem(&owners, &tgid, &owner, BPF_ANY)) {
		end_instance(instance, INSTANCE_EXITED);
		return false;
	}
	send_event(EVENT_LIFECYCLE, instance, 0);
	return true;
}

static __always_inline void close_slot(u32 slot)
{
	__sync_lock_test_and_set(&process_at(slot)->state, SLOT_CLOSED);
	send_event(EVENT_LIFECYCLE, 0, 0);
}

/* Takes slot `number` + 1 if it is free, and ends the search. */
static long take_if_free(u64 number, u32 *taken)
{
	u32 slot = number + 1;
	u64 *state = &process_at(slot)->state;

	if (*(volatile u64 *)state != SLOT_FREE || __sync_val_compare_and_swap(state, SLOT_FREE, SLOT_TAKEN) != SLOT_FREE)
		return 0;
	*taken = slot;
	return 1;
}

/* Begins an instance in a free slot, if there is one. */
static __always_inline void begin_in_free_slot(struct beginning *beginning)
{
	u32 slot = 0;

	bpf_loop(slot_count - 1, take_if_free, &slot, 0);
	if (slot && begin_in_slot(slot, beginning))
		return;
	if (slot)
		close_slot(slot);
	count(COUNTER_LOST_PROCESS);
}

/* Tells user space that a process may belong to the selected ones now, or no longer. */
static __always_inline void members_change(void)
{
	if (follow_members && !*(volatile u64 *)&numbers.members_changed &&
	    !__sync_lock_test_and_set(&numbers.members_changed, 1))
		send_event(EVENT_MEMBERS, 0, 0);
}

/* Abandons the current thread's call, if any: the thread or its program ends. */
static __always_inline void abandon_call(void)
{
	struct thread *thread = known_thread();

	if (!thread)
		return;
	forget_call(thread);
	thread->owner = 0;
}

/*
 * Handles a new name of a task. During exec, its memory is new and has only one mapping, the stack: from then on the
 * process's mappings are not those of the old program, although the old instance lasts until the new one has begun.
 */
static __always_inline void task_renamed(struct task_struct___read *task)
{
	u32 tgid = current_tgid();
	u64 owner;

	if ((u32)task->pid != (u32)bpf_get_current_pid_tgid() || !task->mm)
		return;
	if (task->mm->map_count != 1) {
		if (task->pid == task->tgid)
			members_change();
		return;
	}
	owner = owner_of_process(tgid);
	if (!owner || process_at(slot_of(owner))->tgid != tgid)
		return;
	__sync_lock_test_and_set(&process_at(slot_of(owner))->state,
				 (u64)instance_of(owner) << 32 | GENERATION_ENDING);
}

/* Returns whether the program that the current process has just executed has no loader: it begins in its own code. */
static __always_inline bool begins_without_loader(void)
{
	struct task_struct___read *task = (void *)bpf_get_current_task_btf();
	u64 entry = program_counter((void *)bpf_task_pt_regs((void *)task));

	return task->mm && task->mm->start_code <= entry && entry < task->mm->end_code;
}

/* Handles exec: the current process runs another program from now on. */
static __always_inline void process_executes(bool by_other_thread)
{
	u32 tgid = current_tgid();
	u64 owner = owner_of_process(tgid);
	u32 slot = slot_of(owner);
	struct beginning beginning = {
		.tgid = tgid,
		.origin = ORIGIN_EXECED,
		.parent = instance_of(owner),
		.by_other_thread = by_other_thread,
		.without_loader = begins_without_loader(),
	};

	abandon_call();
	members_change();
	if (!owner) {
		bpf_map_delete_elem(&owners, &tgid);
		return;
	}
	if (process_at(slot)->tgid != tgid) {
		/* The process shared its parent's memory and has its own now. */
		bpf_map_delete_elem(&owners, &tgid);
		if (follow_fork)
			begin_in_free_slot(&beginning);
		return;
	}
	if (!begin_in_slot(slot, &beginning)) {
		count(COUNTER_LOST_PROCESS);
		bpf_map_delete_elem(&owners, &tgid);
		close_slot(slot);
	}
	/* Last: a reader that sees this end also sees the instance that followed. */
	end_instance(instance_of(owner), INSTANCE_EXECED);
}

/* Signal by which the kernel kills, and the bits of an exit code that are a signal. */
#define SIGNAL_KILL 9
#define EXIT_SIGNAL 0x7f

/*
 * Returns whether the kernel has chosen the process of an ending task to be killed for lack of memory. That sets
 * `oom_mm` for good (mark_oom_victim, since 4.9), also in a process that was ending by itself.
 */
static __always_inline bool is_out_of_memory(struct task_struct___read *task)
{
	return task->signal->oom_mm && (task->exit_code & EXIT_SIGNAL) == SIGNAL_KILL;
}

/* Handles the end of the current thread, and that of its process if it is the last one. */
static __always_inline void thread_exits(void)
{
	struct task_struct___read *task = (void *)bpf_get_current_task_btf();
	u32 tgid = current_tgid();
	u64 owner = owner_of_process(tgid);
	u32 slot = slot_of(owner);

	abandon_call();
	leave_place((void *)task);
	if (task->signal->live.counter != 0)
		return;
	bpf_map_delete_elem(&owners, &tgid);
	if (!owner || process_at(slot)->tgid != tgid)
		return;
	end_instance(instance_of(owner), is_out_of_memory(task) ? INSTANCE_OUT_OF_MEMORY : INSTANCE_EXITED);
	close_slot(slot);
}

/* Lets a child of fork use the list that its parent uses now, until the child's own mappings are published. */
static __always_inline void borrow_lists(struct beginning *beginning, u64 owner)
{
	struct process *parent = process_at(slot_of(owner));
	u64 state = state_of(slot_of(owner));
	u32 generation = state;

	beginning->changing = is_changing(slot_of(owner));
	if (generation == GENERATION_ENDING)
		return;
	if (generation == GENERATION_NONE) {
		beginning->borrowed = parent->borrowed;
		beginning->lender = parent->lender;
		return;
	}
	beginning->borrowed = state;
	beginning->lender = slot_of(owner);
	beginning->parent_epoch = parent->epochs[generation & 1];
}

/* Handles fork and clone: the current process has created a process or a thread. */
static __always_inline void process_forks(struct task_struct___read *parent, struct task_struct___read *child)
{
	/* A process that shares memory has the same blocks, whether children are followed or not. */
	bool shares = child->mm == parent->mm;
	u64 owner;
	u32 tgid;

	if (child->tgid == parent->tgid)
		return;
	members_change();
	if (!follow_fork && !shares)
		return;
	owner = owner_of_process(visible_tgid(parent, parent->tgid));
	if (!owner)
		return;
	tgid = visible_tgid(child, child->tgid);
	if (shares) {
		if (bpf_map_update_elem(&owners, &tgid, &owner, BPF_ANY))
			count(COUNTER_LOST_PROCESS);
		else
			send_event(EVENT_SHARED, instance_of(owner), tgid);
		return;
	}

	struct beginning beginning = {
		.tgid = tgid,
		.origin = ORIGIN_FORKED,
		.parent = instance_of(owner),
		.parent_slot = slot_of(owner),
	};

	borrow_lists(&beginning, owner);
	begin_in_free_slot(&beginning);
}

static __always_inline bool has_ended(u32 instance)
{
	return *(volatile u8 *)&record_of(instance)->end != INSTANCE_RUNS;
}

/*
 * Removes a block from the table if its instance has ended. It remains in the totals of its stack. Not static: verified
 * once, by itself.
 */
__noinline int forget_if_ended(struct block_key *key)
{
	struct block_key copy;

	if (!key)
		return 0;
	copy = *key;
	if (has_ended(copy.instance))
		remove_block(&copy);
	return 0;
}

static long forget_ended(void *map, struct block_key *key, struct block *block, void *context)
{
	struct block_key copy = *key;

	return forget_if_ended(&copy);
}

/* Empties a young place if the instance of its block has ended. */
static long forget_young(u64 number, void *context)
{
	struct young_block *place = place_at(number);
	u64 word = young_word(place);

	if (is_full(word) && has_ended(place->key.instance))
		empty_place(place, word);
	return 0;
}

/* Removes a note of freed memory, or of memory that was taken, if its instance has ended. */
static long forget_note(void *map, struct block_key *key, void *value, void *context)
{
	struct block_key copy = *key;

	if (has_ended(copy.instance))
		bpf_map_delete_elem(map, &copy);
	return 0;
}
