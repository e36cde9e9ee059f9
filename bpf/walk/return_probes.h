/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What return addresses were before the kernel replaced them: a return probe, ours or another tool's, makes a
 * function return to a trampoline, and the kernel keeps the address in a list of the thread, newest first.
 *
 * The only place that reads these structures. Where the kernel has others, nothing is found, and a walk ends at the
 * trampoline.
 */
#ifndef RETURN_PROBES_H
#define RETURN_PROBES_H

#include "kernel.h"
#include "walk/arch.h"

#include <bpf/bpf_core_read.h>

/* As the kernel's include/linux/uprobes.h, but for what is not needed here. */
struct return_instance___read {
	/* The stack pointer at the function's entry: on x86-64, where its return address was. */
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance___read *next;
} __attribute__((preserve_access_index));

struct uprobe_task___read {
	/* How many of them there are. */
	unsigned int depth;
	struct return_instance___read *return_instances;
} __attribute__((preserve_access_index));

/* As its kernel/events/uprobes.c: the page that holds the trampoline, at its start. */
struct xol_area___read {
	unsigned long vaddr;
} __attribute__((preserve_access_index));

/* As its include/linux/mm_types.h. */
struct mm_struct___probed {
	struct {
		struct xol_area___read *xol_area;
	} uprobes_state;
} __attribute__((preserve_access_index));

/* As its include/linux/sched.h. */
struct task_struct___probed {
	struct mm_struct___probed *mm;
	struct uprobe_task___read *utask;
} __attribute__((preserve_access_index));

struct return_search {
	struct return_instance___read *instance;
	u64 slot;
	u64 address;
};

static long look_at_instance(u64 number, struct return_search *search)
{
	struct return_instance___read *instance = search->instance;

	if (!instance)
		return 1;
	if (BPF_CORE_READ(instance, stack) == search->slot) {
		search->address = BPF_CORE_READ(instance, orig_ret_vaddr);
		return 1;
	}
	search->instance = BPF_CORE_READ(instance, next);
	return 0;
}

/* Whether it can be said what functions with return probes return to. */
static __always_inline bool trampoline_is_known(void)
{
	struct mm_struct___probed *mm = NULL;
	struct xol_area___read *area = NULL;

	return bpf_core_field_exists(mm->uprobes_state.xol_area) && bpf_core_field_exists(area->vaddr);
}

/*
 * What functions with return probes return to; 0 if there is nothing, or it is not known. As a walk sees it: on AArch64
 * with 52-bit addresses it is the program's last page, the only one above those that walks know, and a return address
 * that was signed there loses the difference with its code.
 */
static __always_inline u64 trampoline_address(void)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();

	return trampoline_is_known() ? without_code(BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr)) : 0;
}

/* Whether functions with return probes return to `address`. The trampoline may be newer than the mapping list. */
static __always_inline bool is_trampoline(u64 address)
{
	return address && trampoline_address() == without_code(address);
}

/* The return address that was in `slot` before it was replaced; 0 if it is not known. */
static __always_inline u64 replaced_return_address(u64 slot)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();
	struct return_search search = { .slot = slot };

	if (!bpf_core_field_exists(task->utask) ||
	    !bpf_core_field_exists(search.instance->stack) ||
	    !bpf_core_field_exists(search.instance->orig_ret_vaddr))
		return 0;
	search.instance = BPF_CORE_READ(task, utask, return_instances);
	bpf_loop(MAX_RETURN_PROBES, look_at_instance, &search, 0);
	return search.address;
}

/* Whether the kernel would leave a return address as it is, the thread having as many return probes as it may. */
static __always_inline bool return_probes_are_exhausted(void)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();
	struct uprobe_task___read *probed = NULL;

	if (!bpf_core_field_exists(task->utask) || !bpf_core_field_exists(probed->depth))
		return false;
	probed = task->utask;
	return probed && probed->depth >= MAX_RETURN_PROBES;
}

#endif
