/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Iterators that write, for each thread of one process, its registers and the pointers that the kernel keeps for it,
 * and the data that the kernel keeps for the process (process/kept.h). A separate object. They stop nothing and write
 * nothing else. The registers of a thread that is off CPU are those with which it will continue; those of a running
 * thread are as old as its last entry into the kernel.
 *
 * All tasks are visited, and those of the process selected: the kernel's own restriction to one process ends early if
 * the thread that it has reached exits.
 */
#include "kernel.h"
#include "process/pids.h"
#include "shared.h"

#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* From the kernel's include/linux/bpf.h and kernel/bpf/task_iter.c. */
struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

#include "process/kept.h"

/* From the kernel's include/linux/sched.h: the fields needed here. There is no `on_cpu` without SMP. */
struct task_struct___registers {
	unsigned int flags;
	int on_cpu, exit_state, pid, tgid;
	unsigned long nvcsw, nivcsw, sas_ss_sp, sas_ss_size;
	void *robust_list;
	int *set_child_tid, *clear_child_tid;
} __attribute__((preserve_access_index));

/* From the kernel's include/linux/futex_types.h: location of the list of robust futexes from Linux 7.2 on. */
struct futex_sched_data___robust {
	void *robust_list;
} __attribute__((preserve_access_index));

struct task_struct___futex {
	struct futex_sched_data___robust futex;
} __attribute__((preserve_access_index));

/* From the kernel's arch/x86/include/asm/ptrace.h and arch/arm64/include/asm/ptrace.h: of the latter, `pstate`. */
struct pt_regs___either {
	unsigned long sp, pstate;
} __attribute__((preserve_access_index));

/* From the kernel's arch/x86/include/asm/processor.h. */
struct thread_struct___x86_64 {
	unsigned long fsbase, gsbase;
} __attribute__((preserve_access_index));

struct task_struct___x86_64 {
	struct thread_struct___x86_64 thread;
} __attribute__((preserve_access_index));

/* From the kernel's arch/arm64/include/asm/processor.h: the thread pointer, TPIDR_EL0. */
struct thread_struct___aarch64 {
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));

struct task_struct___aarch64 {
	struct thread_struct___aarch64 thread;
} __attribute__((preserve_access_index));

enum {
	/* Flags of tasks without a program's registers, PF_IO_WORKER and PF_KTHREAD. */
	WITHOUT_PROGRAM = 0x10 | 0x200000,
	/* Bit of AArch64's `pstate`, PSR_MODE32_BIT. */
	IS_32_BIT = 0x10,
	/*
	 * Words at the start of the kernel's `struct pt_regs` that are a program's: 21 on x86-64; on AArch64, up to
	 * `orig_x0`.
	 */
	REGISTER_WORDS = 35,
};

/* A thread as user space gets it. All from `registers` on are words that can be pointers. */
struct thread_state {
	u32 tid;
	/* Not 0 if the thread ran at any time while it was read. */
	u32 is_running;
	u64 sp;
	u64 alternate_stack, alternate_stack_bytes;
	u64 registers[REGISTER_WORDS];
	/* x86-64: bases of fs and gs. AArch64: TPIDR_EL0. */
	u64 thread_pointers[2];
	u64 robust_list, set_child_tid, clear_child_tid;
};

/* The process, by its id in user space's namespace. Set by user space before it reads. */
u32 wanted_process;
/* Room for one thread; one iterator at a time is read. */
struct thread_state state;

static __always_inline void copy_thread_pointers(void *task, u64 *to)
{
	struct task_struct___x86_64 *x86_64 = task;
	struct task_struct___aarch64 *aarch64 = task;

	if (bpf_core_field_exists(x86_64->thread.fsbase)) {
		to[0] = BPF_CORE_READ(x86_64, thread.fsbase);
		to[1] = BPF_CORE_READ(x86_64, thread.gsbase);
	}
	if (bpf_core_field_exists(aarch64->thread.uw.tp_value))
		to[0] = BPF_CORE_READ(aarch64, thread.uw.tp_value);
}

/* Reads the registers of a task; returns whether they are a 64-bit program's. */
static __always_inline bool read_registers(struct task_struct *task)
{
	struct pt_regs___either *registers = (void *)bpf_task_pt_regs(task);
	u32 bytes = bpf_core_type_size(struct pt_regs___either);

	if (bytes > sizeof(state.registers))
		bytes = sizeof(state.registers);
	if (bpf_probe_read_kernel(state.registers, bytes, registers))
		return false;
	state.sp = BPF_CORE_READ(registers, sp);
	return !bpf_core_field_exists(registers->pstate) || !(BPF_CORE_READ(registers, pstate) & IS_32_BIT);
}

static __always_inline u64 robust_list(void *task)
{
	struct task_struct___registers *in_task = task;
	struct task_struct___futex *in_futex = task;

	if (bpf_core_field_exists(in_task->robust_list))
		return (u64)BPF_CORE_READ(in_task, robust_list);
	if (bpf_core_field_exists(in_futex->futex.robust_list))
		return (u64)BPF_CORE_READ(in_futex, futex.robust_list);
	return 0;
}

/* Returns whether the task is on a CPU. The field is one byte since Linux 7.2, and is read with its actual size. */
static __always_inline bool is_on_cpu(struct task_struct___registers *task)
{
	return bpf_core_field_exists(task->on_cpu) && BPF_CORE_READ_BITFIELD_PROBED(task, on_cpu);
}

/* Returns how often the task was taken off a CPU: if equal before and after, it did not run in between. */
static __always_inline u64 switches(struct task_struct___registers *task)
{
	return BPF_CORE_READ(task, nvcsw) + BPF_CORE_READ(task, nivcsw);
}

SEC("iter/task")
int thread_registers(struct bpf_iter__task *ctx)
{
	struct task_struct *entry = ctx->task;
	struct task_struct___registers *task = (void *)entry;

	if (!entry || visible_tgid(task, BPF_CORE_READ(task, tgid)) != wanted_process)
		return 0;
	if ((BPF_CORE_READ(task, flags) & WITHOUT_PROGRAM) || BPF_CORE_READ(task, exit_state))
		return 0;

	u64 switches_before = switches(task);
	bool on_cpu_before = is_on_cpu(task);

	if (!read_registers(entry))
		return 0;
	copy_thread_pointers(task, state.thread_pointers);
	state.tid = visible_tid(task, BPF_CORE_READ(task, pid));
	state.alternate_stack = BPF_CORE_READ(task, sas_ss_sp);
	state.alternate_stack_bytes = BPF_CORE_READ(task, sas_ss_size);
	state.robust_list = robust_list(task);
	state.set_child_tid = (u64)BPF_CORE_READ(task, set_child_tid);
	state.clear_child_tid = (u64)BPF_CORE_READ(task, clear_child_tid);
	state.is_running = on_cpu_before || is_on_cpu(task) || switches(task) != switches_before;
	/* If it does not fit, the kernel reads what there is and comes back to this task. */
	bpf_seq_write(ctx->meta->seq, &state, sizeof(state));
	return 0;
}

/*
 * Writes the data that the kernel keeps by task: pending signals, and for the process's first task contexts of
 * asynchronous I/O.
 */
SEC("iter/task")
int kept_by_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct___kept *task = (void *)ctx->task;
	u32 tgid;

	if (!task)
		return 0;
	tgid = BPF_CORE_READ(task, tgid);
	if (visible_tgid(task, tgid) != wanted_process)
		return 0;
	write_signals(ctx->meta->seq, (void *)task + bpf_core_field_offset(task->pending));
	if ((u32)BPF_CORE_READ(task, pid) != tgid)
		return 0;
	write_signals(ctx->meta->seq, (void *)BPF_CORE_READ(task, signal) + bpf_core_field_offset(struct signal_struct___kept, shared_pending));
	write_contexts(ctx->meta->seq, BPF_CORE_READ(task, mm));
	return 0;
}

/* Writes the data that the kernel keeps for the process by file descriptor. */
SEC("iter/task_file")
int kept_by_files(struct bpf_iter__task_file *ctx)
{
	struct task_struct___kept *task = (void *)ctx->task;
	struct file___kept *file = ctx->file;

	if (!task || !file || visible_tgid(task, BPF_CORE_READ(task, tgid)) != wanted_process)
		return 0;
	if (see_file(file))
		write_place(ctx->meta->seq);
	return 0;
}
