/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Memory that traced processes take from the kernel by neither mapping calls nor page faults: open files, and what they
 * write to files in memory. Sent to user space with stacks, in the queue of page faults (`memleak why`). Descriptors
 * that a process receives from another one, or by io_uring, are not seen.
 */
#pragma once

#include "calls/current_stack.h"
#include "config.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/memory_events.h"
#include "process/processes.h"
#include "process/regions.h"

#include <bpf/bpf_core_read.h>

/* From the kernel's include/linux/fs.h, include/linux/fdtable.h and include/linux/sched.h: the fields needed here. */
struct super_block___take {
	unsigned long s_magic;
} __attribute__((preserve_access_index));

struct inode___take {
	struct super_block___take *i_sb;
} __attribute__((preserve_access_index));

struct file___take {
	struct inode___take *f_inode;
} __attribute__((preserve_access_index));

struct fdtable___take {
	unsigned int max_fds;
	struct file___take **fd;
} __attribute__((preserve_access_index));

struct files_struct___take {
	struct fdtable___take *fdt;
} __attribute__((preserve_access_index));

struct task_struct___take {
	struct files_struct___take *files;
} __attribute__((preserve_access_index));

/* From the kernel's include/uapi/linux/magic.h. */
#define TMPFS_MAGIC 0x01021994

static __always_inline void send_take(enum take_kind kind, u64 owner, u64 amount)
{
	struct pt_regs *regs = user_registers();
	struct take_event *event;
	u32 stack;

	if (is_32_bit(regs))
		return;
	count(COUNTER_PROBE_HITS);
	stack = current_stack(regs, NULL, caller_of_kernel(regs), owner, fault_function);
	event = bpf_ringbuf_reserve(&region_events, sizeof(*event), 0);
	if (!event) {
		count(COUNTER_LOST_FAULT_EVENT);
		return;
	}
	event->amount = amount;
	event->instance = instance_of(owner);
	event->stack = stack;
	event->kind = kind;
	event->unused = 0;
	bpf_ringbuf_submit(event, region_wakeup());
}

/* A call has ended that gives its process the descriptor `value`, or fails. */
static __always_inline void descriptor_call_ends(u64 value)
{
	u64 owner = region_owner();

	if (owner && !is_error(value))
		send_take(TAKE_DESCRIPTOR, owner, value);
}

/* A call has ended that gives its process two descriptors, at the address that is its argument `number`. */
static __always_inline void pair_call_ends(u32 number, u64 value)
{
	u64 owner = region_owner();
	u32 pair[2];

	if (!owner || value || bpf_probe_read_user(pair, sizeof(pair), (void *)syscall_argument(user_registers(), number)))
		return;
	send_take(TAKE_DESCRIPTOR, owner, pair[0]);
	send_take(TAKE_DESCRIPTOR, owner, pair[1]);
}

/* Returns whether an open file of the current process is one in memory. */
static __always_inline bool is_in_memory(u32 descriptor)
{
	struct task_struct___take *task = (void *)bpf_get_current_task_btf();
	struct fdtable___take *table = BPF_CORE_READ(task, files, fdt);
	struct file___take **files = BPF_CORE_READ(table, fd), *file = NULL;

	if (descriptor >= BPF_CORE_READ(table, max_fds) || bpf_probe_read_kernel(&file, sizeof(file), files + descriptor))
		return false;
	return file && BPF_CORE_READ(file, f_inode, i_sb, s_magic) == TMPFS_MAGIC;
}

/*
 * A call has ended that writes `value` bytes to a file, or fails: those in memory matter. Like pages, one of
 * `sampling_interval` is recorded.
 */
static __always_inline void write_call_ends(u64 value)
{
	u64 owner = region_owner();

	if (!owner || !value || is_error(value) ||
	    (sampling != SAMPLE_ALL && bpf_get_prandom_u32() * sampling_interval >> 32))
		return;
	if (is_in_memory(syscall_argument(user_registers(), 0)))
		send_take(TAKE_WRITE, owner, value);
}
