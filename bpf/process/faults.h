/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Page faults of traced processes (--faults), sent to user space with their stacks, in one queue with the mapping
 * calls.
 *
 * A fault says that a page is touched, not that it becomes resident: user space finds out whether it does, and which
 * faults are of pages that were resident before (crates/process/src/touched).
 */
#pragma once

#include "calls/calls.h"
#include "calls/current_stack.h"
#include "config.h"
#include "counters.h"
#include "hash.h"
#include "kernel.h"
#include "maps.h"
#include "process/memory_events.h"
#include "process/processes.h"
#include "process/regions.h"

/* From the kernel's include/uapi/linux/bpf_perf_event.h: the registers are `bpf_user_pt_regs_t`. */
struct perf_event_context {
	unsigned long registers[CONTEXT_REGISTERS];
	u64 sample_period;
	u64 address;
};

/*
 * Returns whether the faults of a page are recorded. Either all faults of a page are, or none, so that a chosen page is
 * followed for good.
 */
static __always_inline bool is_chosen_page(u64 address)
{
	if (sampling == SAMPLE_ALL)
		return true;
	return (mix(page_seed, address >> page_shift) & 0xffffffff) * sampling_interval >> 32 == 0;
}

/*
 * Returns whether the program's own instruction faulted; else the kernel did, on its behalf: its addresses have the
 * highest bit set.
 */
static __always_inline bool is_own_fault(struct perf_event_context *ctx)
{
	return !(ctx->registers[CONTEXT_PC] >> 63);
}

/* Returns whether the instance is in exec: then its memory is that of the next one. */
static __always_inline bool is_in_exec(u64 owner)
{
	return (u32)state_of(slot_of(owner)) == GENERATION_ENDING;
}

static __always_inline void page_faults(struct perf_event_context *ctx)
{
	u64 address = ctx->address;
	struct thread *thread = known_thread();
	u64 owner = current_owner(thread);
	struct pt_regs *regs;
	struct fault_event *event;
	u32 stack;

	if (!owner || !is_chosen_page(address) || is_in_exec(owner))
		return;
	count(COUNTER_PROBE_HITS);
	thread = owned_thread(thread, owner);
	regs = user_registers();

	struct caller caller = caller_of_kernel(regs);

	/* The faulting instruction, as if it were a call: the walk looks up the byte before. */
	if (is_own_fault(ctx))
		caller.pc++;
	stack = current_stack(regs, thread ? &thread->habits : NULL, caller, owner, fault_function);
	event = bpf_ringbuf_reserve(&region_events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_LOST_FAULT_EVENT);
		return;
	}
	event->address = address;
	event->instance = instance_of(owner);
	event->stack = stack;
	bpf_ringbuf_submit(event, region_wakeup());
}
