/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Storage of thread states: a place of an array, selected by the thread's id, or, if another thread has that place,
 * task storage, whose lookup calls the kernel.
 *
 * A thread takes its place with its first call, and gives it back at its end. Only the thread that has a place reads or
 * writes what is in it. Ids are the kernel's, so no two running threads have the same; the start time tells a thread
 * from an earlier one with its id, in case the end of that one was not seen.
 */
#pragma once

#include "calls/thread.h"
#include "kernel.h"
#include "maps.h"

/* From the kernel's include/linux/sched.h: the fields needed here. */
struct task_struct___started {
	int pid;
	u64 start_boottime;
} __attribute__((preserve_access_index));

static __always_inline struct thread_place *place_of_thread(struct task_struct___started *task)
{
	u32 key = task->pid & (THREAD_PLACES - 1);

	return bpf_map_lookup_elem(&thread_places, &key);
}

/* Returns whether `task` has a place. */
static __always_inline bool has_place(struct thread_place *place, struct task_struct___started *task)
{
	return place && place->holder == (u32)task->pid && place->started == task->start_boottime;
}

/* Returns the state of `task`, the current thread, or NULL if it has none yet. */
static __always_inline struct thread *thread_of(void *task)
{
	struct thread_place *place = place_of_thread(task);

	if (has_place(place, task))
		return &place->thread;
	return bpf_task_storage_get(&threads, task, 0, 0);
}

/* Returns the current thread's state, or NULL if it has none yet. */
static __always_inline struct thread *known_thread(void)
{
	return thread_of(bpf_get_current_task_btf());
}

/* Takes the place of `task`, the current thread; returns NULL if another thread has it. */
static __always_inline struct thread *take_place(struct task_struct___started *task)
{
	struct thread_place *place = place_of_thread(task);
	u32 holder = task->pid;

	if (!place)
		return NULL;
	/* If the place has this id but is not this thread's, its thread has ended. */
	if (place->holder != holder && __sync_val_compare_and_swap(&place->holder, 0, holder))
		return NULL;
	place->thread = (struct thread){};
	place->started = task->start_boottime;
	return &place->thread;
}

/*
 * Gives back the place of `task`, the current thread, which then has no state. (A thread other than the first that
 * execs gets the first one's id and start time: its own place stays taken, until a thread of its former id needs it.)
 */
static __always_inline void leave_place(struct task_struct___started *task)
{
	struct thread_place *place = place_of_thread(task);

	if (!has_place(place, task))
		return;
	place->started = 0;
	__sync_val_compare_and_swap(&place->holder, (u32)task->pid, 0);
}

/*
 * Returns the state of the current thread, whose allocations are `owner`'s; creates it if `known` is NULL. NULL without
 * memory.
 */
static __always_inline struct thread *owned_thread(struct thread *known, u64 owner)
{
	if (!known)
		known = take_place((void *)bpf_get_current_task_btf());
	if (!known)
		known = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (known)
		known->owner = owner;
	return known;
}

/*
 * Returns the number of the current thread's name, or 0 if the name has none. Not static, so that its variables are on
 * its own part of the BPF stack, which no walk needs at that time.
 */
__noinline u32 number_of_thread_name(void)
{
	struct thread_name name = {};
	u32 *known, number;

	bpf_get_current_comm(name.text, sizeof(name.text));
	known = bpf_map_lookup_elem(&thread_names, &name);
	if (known)
		return *known;
	if (last_thread_name >= MAX_THREAD_NAMES)
		return 0;
	number = __sync_fetch_and_add(&last_thread_name, 1) + 1;
	/* Another thread of this name may be faster: the number is then not used. */
	if (!bpf_map_update_elem(&thread_names, &name, &number, BPF_NOEXIST))
		return number;
	known = bpf_map_lookup_elem(&thread_names, &name);
	return known ? *known : 0;
}

/*
 * Returns the time of the thread's first event in the current timer tick, in nanoseconds of CLOCK_MONOTONIC: early by
 * up to a tick, at most 10 ms. The low THREAD_NAME_BITS have the number of the thread's name instead. Reading the clock
 * takes more than 30 ns; the number of the tick, which the verifier replaces by a load, takes none.
 */
static __always_inline u64 time_of(struct thread *thread)
{
	struct tick *tick = &thread->tick;
	u64 number = bpf_jiffies64();

	if (tick->number != number) {
		tick->number = number;
		tick->time = bpf_ktime_get_ns() >> THREAD_NAME_BITS << THREAD_NAME_BITS |
			     (number_of_thread_name() & ((1 << THREAD_NAME_BITS) - 1));
	}
	return tick->time;
}
