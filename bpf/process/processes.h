/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a thread to the instance and slot that own what it allocates, and to the mapping list of its walks.
 *
 * An owner is the instance's number above its slot's. It holds only while the slot has that instance, which is
 * asked at each use: a thread's state, or a process that shares another's memory, can outlive it.
 */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "kernel.h"
#include "maps.h"
#include "shared.h"
#include "walk/mappings.h"

/* The list that knows nothing: in it, every walk ends with "table not loaded". */
#define NO_LIST 0

static __always_inline u64 make_owner(u32 instance, u32 slot)
{
	return (u64)instance << 32 | slot;
}

static __always_inline u32 instance_of(u64 owner_or_state)
{
	return owner_or_state >> 32;
}

static __always_inline u32 slot_of(u64 owner)
{
	return (u32)owner;
}

static __always_inline struct process *process_at(u32 slot)
{
	return &processes[slot & (MAX_PROCESSES - 1)];
}

static __always_inline u64 state_of(u32 slot)
{
	return *(volatile u64 *)&process_at(slot)->state;
}

/* Whether an owner's instance goes on. */
static __always_inline bool owner_is_current(u64 owner)
{
	return owner && instance_of(state_of(slot_of(owner))) == instance_of(owner);
}

/* The owner of what process `tgid` allocates; 0 when it is not traced. */
static __always_inline u64 owner_of_process(u32 tgid)
{
	u64 *owner = bpf_map_lookup_elem(&owners, &tgid);

	return owner && owner_is_current(*owner) ? *owner : 0;
}

/* What a walk uses throughout: a mapping list with its rule cache, and the epoch in which they are right. */
static __always_inline u64 make_view(u32 list, u32 epoch)
{
	return (u64)epoch << 32 | list;
}

static __always_inline u32 list_of(u64 view)
{
	return view;
}

static __always_inline u32 epoch_of(u64 view)
{
	return view >> 32;
}

/* Not static: the verifier then checks it by itself, and what follows it once, not once for each way out. */
__noinline u64 view_of(u64 owner)
{
	u32 slot = slot_of(owner);
	struct process *process = process_at(slot);
	u64 state = state_of(slot);
	u32 generation = state;
	u64 borrowed = process->borrowed;

	if (instance_of(state) != instance_of(owner) || generation == GENERATION_ENDING)
		return make_view(NO_LIST, 0);
	if (generation != GENERATION_NONE)
		return make_view(list_number(slot, generation), process->epochs[generation & 1]);
	if (borrowed && instance_of(state_of(process->lender)) == instance_of(borrowed))
		return make_view(list_number(process->lender, borrowed), 0);
	return make_view(NO_LIST, 0);
}

/*
 * Whether `view` is that of an owner whose slot has `state`, and of lists of its own: what is remembered by the state
 * holds then for as long as the slot has it.
 */
static __always_inline bool describes(u64 state, u64 view, u64 owner)
{
	u32 slot = slot_of(owner);
	u32 generation = state;

	return instance_of(state) == instance_of(owner) && generation != GENERATION_NONE &&
	       generation != GENERATION_ENDING && list_of(view) == list_number(slot, generation) &&
	       state_of(slot) == state;
}

#endif
