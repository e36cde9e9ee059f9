/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Notification of user space that a mapping list is out of date: by a walk that met an address outside of it, or by the
 * loader hook, which runs before and after the loader maps or unmaps objects.
 *
 * A change is announced by incrementing a count. User space publishes with each mapping list the count at which it
 * began to read the mappings; while the two differ, walks do not trust mappings that they cannot verify.
 */
#pragma once

#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/processes.h"

/* Sends user space an event. */
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

/* Returns whether a change was announced that the mapping list does not contain yet. Call it before view_of. */
static __always_inline bool is_changing(u32 slot)
{
	struct process *process = process_at(slot);
	u64 published = *(volatile u64 *)&process->changes_published;

	return *(volatile u64 *)&process->changes_announced != published;
}

/* Counts a change. Only the first since the published count wakes user space, which polls for later ones. */
static __always_inline void announce_change(u64 owner)
{
	struct process *process = process_at(slot_of(owner));

	*(volatile u64 *)&process->changed_at = (u32)(bpf_ktime_get_ns() / 1000);
	if (__sync_fetch_and_add(&process->changes_announced, 1) ==
	    *(volatile u64 *)&process->changes_published)
		send_event(EVENT_MAPPINGS_CHANGED, instance_of(owner), 0);
}
