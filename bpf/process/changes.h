/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What user space is told: that a mapping list is out of date, by a walk that met what it does not hold, or by the
 * target's loader, which says when it is about to map or unmap objects and when it has done so.
 *
 * A change is announced by counting it. User space publishes with each mapping list the count at which it began
 * to read; while the two differ, walks do not trust what they cannot verify.
 */
#pragma once

#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/processes.h"

/* Tells user space what it must act on. */
static __always_inline void send_event(enum event_kind kind, u32 instance, u64 address)
{
	struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		count(COUNTER_LOST_EVENT);
		return;
	}
	event->kind = kind;
	event->instance = instance;
	event->address = address;
	bpf_ringbuf_submit(event, 0);
}

/* Whether a change is announced that the mapping list does not have yet. To be asked before the list is chosen. */
static __always_inline bool is_changing(u32 slot)
{
	struct process *process = process_at(slot);
	u64 published = *(volatile u64 *)&process->changes_published;

	return *(volatile u64 *)&process->changes_announced != published;
}

/* Counts a change. User space is woken by the first after what it knows of; it looks for others by itself. */
static __always_inline void announce_change(u64 owner)
{
	struct process *process = process_at(slot_of(owner));

	*(volatile u64 *)&process->changed_at = (u32)(bpf_ktime_get_ns() / 1000);
	if (__sync_fetch_and_add(&process->changes_announced, 1) ==
	    *(volatile u64 *)&process->changes_published)
		send_event(EVENT_MAPPINGS_CHANGED, instance_of(owner), 0);
}
