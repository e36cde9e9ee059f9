/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Process ids in the pid namespace of user space, which can differ from the initial one, whose ids the kernel's helpers
 * return. A process has an id in each namespace from the initial one to its own.
 */
#pragma once

#include "config.h"
#include "kernel.h"
#include "shared.h"

#include <bpf/bpf_core_read.h>

/* From the kernel's include/linux/pid.h and pid_namespace.h: the fields needed here. */
struct pid_namespace___read {
	struct {
		unsigned int inum;
	} ns;
} __attribute__((preserve_access_index));

struct upid___read {
	int nr;
	struct pid_namespace___read *ns;
} __attribute__((preserve_access_index));

struct pid___read {
	unsigned int level;
	struct upid___read numbers[1];
} __attribute__((preserve_access_index));

/* From the kernel's include/linux/sched/signal.h: by type of id; index 1 is the thread group's (PIDTYPE_TGID). */
struct signal_struct___pids {
	struct pid___read *pids[4];
} __attribute__((preserve_access_index));

struct task_struct___pids {
	struct signal_struct___pids *signal;
	struct pid___read *thread_pid;
} __attribute__((preserve_access_index));

/* Returns an id in user space's namespace, which is not the initial one, or 0 if it has none there. */
static __always_inline u32 visible_number(struct pid___read *pid)
{
	u64 numbers = (u64)pid + bpf_core_field_offset(pid->numbers);

	for (u32 level = 0; level < MAX_PID_LEVELS; level++) {
		struct upid___read *number = (void *)(numbers + level * bpf_core_type_size(struct upid___read));

		if (level > BPF_CORE_READ(pid, level))
			break;
		if (BPF_CORE_READ(number, ns, ns.inum) == pid_namespace)
			return BPF_CORE_READ(number, nr);
	}
	return 0;
}

/*
 * Returns the id of a task's process in user space's namespace, or 0 if it has none. `global`: in the initial
 * namespace.
 */
static __always_inline u32 visible_tgid(void *task, u32 global)
{
	if (!pid_namespace)
		return global;
	return visible_number(BPF_CORE_READ((struct task_struct___pids *)task, signal, pids[1]));
}

/*
 * Returns the id of a task itself in user space's namespace, or 0 if it has none. `global`: in the initial namespace.
 */
static __always_inline u32 visible_tid(void *task, u32 global)
{
	if (!pid_namespace)
		return global;
	return visible_number(BPF_CORE_READ((struct task_struct___pids *)task, thread_pid));
}

static __always_inline u32 current_tgid(void)
{
	return visible_tgid(bpf_get_current_task_btf(), bpf_get_current_pid_tgid() >> 32);
}
