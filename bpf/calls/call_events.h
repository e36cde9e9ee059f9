/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The call trace: calls, one by one (-t). Without -t the verifier removes its code from the programs, as `call_trace`
 * is a constant.
 *
 * User space polls for events: a wakeup for each would take longer than the rest of a probe.
 */
#ifndef CALL_EVENTS_H
#define CALL_EVENTS_H

#include "counters.h"
#include "kernel.h"
#include "store/store_config.h"
#include "store/store_maps.h"

/* Sends one event. Not inlined, to keep the programs small. */
static __noinline int send_call_event(u32 kind, u32 instance, u64 address, u64 size, u32 stack)
{
	u64 thread = bpf_get_current_pid_tgid();
	struct call_event *event;

	if (thread >> 32 == call_trace_except)
		return 0;
	event = bpf_ringbuf_reserve(&call_events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_LOST_CALL_EVENT);
		return 0;
	}
	event->time = bpf_ktime_get_ns();
	event->address = address;
	event->size = size;
	event->kind = kind;
	event->instance = instance;
	event->process = thread >> 32;
	event->thread = thread;
	event->stack = stack;
	event->cpu = bpf_get_smp_processor_id();
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/*
 * Sends an event if -t asks for its kind. `stack`: index of the stack record, or of its function's "not walked" record.
 */
static __always_inline void trace_call(enum call_event_kind kind, u32 instance, u64 address, u64 size, u32 stack)
{
	if (call_trace == CALL_TRACE_OFF || (kind == CALL_BEGINS && call_trace != CALL_TRACE_ALL))
		return;
	send_call_event(kind, instance, address, size, stack);
}

#endif
