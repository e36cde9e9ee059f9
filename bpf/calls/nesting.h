/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Checks whether a thread's current call is still active when another begins.
 *
 * A call can end without its return being seen: by an exception or longjmp. If that went unnoticed, all later calls of
 * the thread would be treated as nested in it, and none of their allocations and frees recorded. So memory must prove
 * that the call is active; the remembered state alone does not count.
 */
#pragma once

#include "calls/return_address.h"
#include "calls/thread.h"
#include "process/processes.h"
#include "walk/mappings.h"
#include "walk/return_probes.h"

/*
 * Returns whether `address`, found as a return address, is in the trampoline of return probes. True while no mappings
 * are known.
 */
static __always_inline bool is_return_probe(u64 owner, u64 address)
{
	u32 list = list_of(view_of(owner));
	struct mapping *mapping = find_mapping(list, address);

	return list == NO_LIST || !mapping || mapping->kind == MAPPING_TRAMPOLINE;
}

/* Returns whether two code addresses are in one mapping, and so in one module. True while no mappings are known. */
static __always_inline bool are_in_one_mapping(u64 owner, u64 one, u64 other)
{
	u32 list = list_of(view_of(owner));
	struct mapping *mapping = find_mapping(list, one);

	if (list == NO_LIST)
		return true;
	return mapping && other >= mapping->start && other < mapping->end;
}

/*
 * Returns whether `call` is active while a function of `module` begins that is probed at `probed_at` and returns by
 * `back`.
 *
 * If it is, its return slot is at or above the new one, and its return address is still in its slot or frame: the
 * trampoline, if it has a return probe, else the original address. A matching original address is weak evidence, as
 * memory below the stack pointer keeps its contents and a new frame can cover it without overwriting it. So it must
 * also hold that
 *
 *  - at the same slot, the new function is another one, to which the outer jumped (the same function at the same slot
 *    is a second call from the same frame);
 *  - at a lower slot, the new function is called by the outer's module, as allocators call their own functions.
 *
 * A call with CALL_UNTRACKED is of a leaf, which calls no probed function of its own module; it can call those of
 * another, as when a program's own malloc calls libc's.
 */
static __always_inline bool goes_on(struct call *call, u64 owner, struct way_back back, u64 probed_at, u32 module)
{
	/* 0 finds only the trampoline: the proof of a call with a return probe. */
	u64 address = call->end == SEEN_BY_RETURN_PROBE ? 0 : call->return_address;
	u64 kept, caller;

	/*
	 * Remembered state can only refute; the proof, further below, is by memory. A nested call has no higher slot.
	 */
	if (!call->return_slot || back.slot > call->return_slot)
		return false;
	if (call->end == CALL_UNTRACKED && module == call->module)
		return false;
	if (!read_kept_address(call->return_slot, address, back, &kept))
		return false;
	if (call->end == SEEN_BY_RETURN_PROBE)
		return is_return_probe(owner, kept);
	/* Separate entry and return probes put the trampoline there even if the entry did not need the return. */
	if (kept != call->return_address && !is_trampoline(kept))
		return false;
	if (back.slot == call->return_slot)
		return probed_at != call->probed_at;
	return read_return_address(back, &caller) && are_in_one_mapping(owner, caller, call->probed_at);
}
