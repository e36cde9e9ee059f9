/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The call trace: calls, one by one (-t). Where nobody asks for that, nothing of it is left in the programs:
 * `call_trace` is a constant to the verifier.
 *
 * User space looks for events by itself: to be woken for each would take longer than all else that a probe does.
 */
#ifndef CALL_EVENTS_H
#define CALL_EVENTS_H

#include "config.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"

/* A function of its own, for the programs to stay as small as they are. */
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

/* `stack`: the index of a stack record; of a call that has none, that of its function's "not walked". */
static __always_inline void trace_call(enum call_event_kind kind, u32 instance, u64 address, u64 size, u32 stack)
{
	if (call_trace == CALL_TRACE_OFF || (kind == CALL_BEGINS && call_trace != CALL_TRACE_ALL))
		return;
	send_call_event(kind, instance, address, size, stack);
}

#endif
