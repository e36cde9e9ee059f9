/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stops the program that memleak has started when it executes another: before the first instruction, and once the
 * loader has mapped the libraries. Each time, user space attaches to the new mappings and then resumes it. Until the
 * last stop, only the loader's code runs.
 */
#pragma once

#include "config.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/pids.h"
#include "process/processes.h"
#include "process/translated.h"

enum {
	/*
	 * Calls of the loader's hook after an exec at which it is stopped. glibc calls it before it maps anything and,
	 * with all mapped and relocated, before the first constructor; musl makes only the later of these calls, so the
	 * second stop is at the first dlopen.
	 */
	HOOK_STOPS = 2,
};

struct task_struct___traced {
	unsigned int ptrace;
} __attribute__((preserve_access_index));

/*
 * Stops the current process; only with an event, by which user space knows to resume it, and not if a debugger traces
 * it, which would get the signal. The signal comes first: SIGCONT, which user space sends after the event, then cancels
 * it even if it was not yet delivered.
 */
static __always_inline void stop_started(u64 owner)
{
	struct task_struct___traced *task = (void *)bpf_get_current_task_btf();
	struct event *event;

	if (!owner || task->ptrace || *(volatile u64 *)&started.is_over)
		return;
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_LOST_EVENT);
		return;
	}
	event->kind = EVENT_STOPPED;
	event->instance = instance_of(owner);
	event->address = 0;
	if (bpf_send_signal(SIGNAL_STOP))
		bpf_ringbuf_discard(event, 0);
	else
		bpf_ringbuf_submit(event, 0);
}

static __always_inline bool is_started(void)
{
	return started_process && current_tgid() == started_process;
}

/* Handles an exec of the started program, after its instance has begun. */
static __always_inline void started_executes(void)
{
	if (!is_started())
		return;
	started.hook_stops = HOOK_STOPS;
	stop_started(owner_of_process(current_tgid()));
}

/* Handles a call of the started program's loader hook, after the change was announced. */
static __always_inline void started_maps(u64 owner)
{
	if (!is_started() || !started.hook_stops)
		return;
	started.hook_stops--;
	stop_started(owner);
}
