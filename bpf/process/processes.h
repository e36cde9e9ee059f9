/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From a thread to its owner (instance and slot), and to the view of its walks (mapping list and epoch).
 *
 * An owner is the instance's number in the high 32 bits and its slot's in the low ones. It is valid only while the slot
 * has that instance, which is checked at each use: a thread's state, or a process that shares another's memory, can
 * outlive it.
 */
#ifndef PROCESSES_H
#define PROCESSES_H

#include "kernel.h"
#include "maps.h"
#include "shared.h"
#include "walk/mappings.h"

/* A list without tables: every walk that uses it ends with END_TABLE_NOT_LOADED. */
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

/* Returns whether an owner's instance still runs. */
static __always_inline bool owner_is_current(u64 owner)
{
	return owner && instance_of(state_of(slot_of(owner))) == instance_of(owner);
}

/* Returns the owner of process `tgid`; 0 if it is not traced. */
static __always_inline u64 owner_of_process(u32 tgid)
{
	u64 *owner = bpf_map_lookup_elem(&owners, &tgid);

	return owner && owner_is_current(*owner) ? *owner : 0;
}

/* Returns a view, which a walk uses throughout: a mapping list with its rule cache (low 32 bits), and their epoch. */
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

/*
 * Returns the view of an owner. Not static: the verifier then checks it separately, and its caller once, not once per
 * exit.
 */
__noinline u64 view_of(u64 owner)
{
	/*
	 * One read of the state decides: it is valid only for the owner's instance, and its generation selects the list
	 * of the slot itself. `borrowed` is the state of another slot, `lender`, valid while that has the same
	 * instance; its low half is a generation too.
	 */
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
 * Returns whether `view` is that of an owner whose slot has `state`, and not borrowed: data stored under the state is
 * then valid for as long as the slot has it.
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
