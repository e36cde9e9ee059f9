/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether the call that a thread is known to be in still goes on when another begins.
 *
 * A call can end unseen: by an exception, by longjmp, with its thread. If that were not noticed, all that the thread
 * does from then on would be taken for the affair of an allocator that is gone, and no block of it would be
 * recorded, no free. So that it goes on is proved by what is in memory, not taken from what is remembered.
 */
#pragma once

#include "calls/return_address.h"
#include "calls/thread.h"
#include "process/processes.h"
#include "walk/mappings.h"
#include "walk/return_probes.h"

/* Whether `address`, found as a return address, is what a return probe makes of one. True while no mappings are known. */
static __always_inline bool is_return_probe(u64 owner, u64 address)
{
	u32 list = list_of(view_of(owner));
	struct mapping *mapping = find_mapping(list, address);

	return list == NO_LIST || !mapping || mapping->kind == MAPPING_TRAMPOLINE;
}

/* Whether two addresses of code are in one mapping, which is to say in one module. True while no mappings are known. */
static __always_inline bool are_in_one_mapping(u64 owner, u64 one, u64 other)
{
	u32 list = list_of(view_of(owner));
	struct mapping *mapping = find_mapping(list, one);

	if (list == NO_LIST)
		return true;
	return mapping && other >= mapping->start && other < mapping->end;
}

/*
 * Whether `call` goes on while a function of `module` begins that is probed at `probed_at`, with its own way back.
 *
 * Its return slot is then at or above the new one, and its return address is where it was, or in its frame: a return
 * probe's trampoline, or, without one, the same return address. As memory below the stack pointer keeps what it held,
 * and a frame can cover it without writing to it, the latter says little by itself. So
 *
 *  - at the same slot the new function is another one, to which the outer jumped: the same at the same slot
 *    is called once more from the same frame;
 *  - at a lower slot, the new function is called by the module of the outer, as allocators call themselves.
 *
 * A call whose end is not seen is of a function that calls no other of its own allocator. What it does call is
 * another module's, as when a program's own malloc calls libc's.
 */
static __always_inline bool goes_on(struct call *call, u64 owner, struct way_back back, u64 probed_at, u32 module)
{
	/* A return probe is known by its trampoline. */
	u64 address = call->end == SEEN_BY_RETURN_PROBE ? 0 : call->return_address;
	u64 kept, caller;

	if (!call->return_slot || back.slot > call->return_slot)
		return false;
	if (call->end == CALL_UNTRACKED && module == call->module)
		return false;
	if (!read_kept_address(call->return_slot, address, back, &kept))
		return false;
	if (call->end == SEEN_BY_RETURN_PROBE)
		return is_return_probe(owner, kept);
	/* Probes at entry and return that are not one put the trampoline there, whatever the entry wants. */
	if (kept != call->return_address && !is_trampoline(kept))
		return false;
	if (back.slot == call->return_slot)
		return probed_at != call->probed_at;
	return read_return_address(back, &caller) && are_in_one_mapping(owner, caller, call->probed_at);
}
