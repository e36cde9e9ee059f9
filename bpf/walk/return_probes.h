/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Return addresses that the kernel replaced: a return probe, memleak's or another tool's, makes a function return to a
 * trampoline, and the kernel keeps the original address in a list of the thread, newest first.
 *
 * Only this file and calls/deferral.h read these structures. If the kernel's differ, no address is found, and a walk
 * ends at the trampoline.
 */
#ifndef RETURN_PROBES_H
#define RETURN_PROBES_H

#include "kernel.h"
#include "walk/arch.h"

#include <bpf/bpf_core_read.h>

/* From the kernel's include/linux/uprobes.h: the fields needed here. */
struct return_instance___read {
	/* Stack pointer at the function's entry: on x86-64, the address of the slot of its return address. */
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance___read *next;
} __attribute__((preserve_access_index));

struct uprobe_task___read {
	/* Length of the list. */
	unsigned int depth;
	struct return_instance___read *return_instances;
} __attribute__((preserve_access_index));

/* From the kernel's kernel/events/uprobes.c: the page that holds the trampoline, at its start. */
struct xol_area___read {
	unsigned long vaddr;
} __attribute__((preserve_access_index));

/* From the kernel's include/linux/mm_types.h. */
struct mm_struct___probed {
	struct {
		struct xol_area___read *xol_area;
	} uprobes_state;
} __attribute__((preserve_access_index));

/* From the kernel's include/linux/sched.h. */
struct task_struct___probed {
	struct mm_struct___probed *mm;
	struct uprobe_task___read *utask;
} __attribute__((preserve_access_index));

struct return_search {
	struct return_instance___read *instance;
	u64 slot;
	u64 address;
};

/* Looks at one entry of the list. Returns whether the search goes on. */
static __always_inline bool look_at_instance(struct return_search *search)
{
	struct return_instance___read *instance = search->instance;

	if (!instance)
		return false;
	if (BPF_CORE_READ(instance, stack) == search->slot) {
		search->address = BPF_CORE_READ(instance, orig_ret_vaddr);
		return false;
	}
	search->instance = BPF_CORE_READ(instance, next);
	return true;
}

/* Returns whether the kernel's structures have the trampoline's address where it is expected. */
static __always_inline bool trampoline_is_known(void)
{
	struct mm_struct___probed *mm = NULL;
	struct xol_area___read *area = NULL;

	return bpf_core_field_exists(mm->uprobes_state.xol_area) && bpf_core_field_exists(area->vaddr);
}

/*
 * Returns the address of the return probes' trampoline in the current process; 0 if it has none or it is unknown. In
 * the form that a walk sees: on AArch64 with 52-bit addresses the trampoline is in the address space's last page, the
 * only one above 2^ADDRESS_BITS, and the high bits of such an address are lost when a return address is stripped of its
 * code (PAC).
 */
static __always_inline u64 trampoline_address(void)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();

	return trampoline_is_known() ? without_code(BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr)) : 0;
}

/* Returns whether `address` is the return probes' trampoline, which can be newer than the mapping list. */
static __always_inline bool is_trampoline(u64 address)
{
	return address && trampoline_address() == without_code(address);
}

/*
 * Returns the return address that was in `slot` before a return probe replaced it; 0 if unknown. Not static: verified
 * once, by itself.
 */
__noinline u64 replaced_return_address(u64 slot)
{
	struct task_struct___probed *task = (void *)bpf_get_current_task_btf();
	struct return_search search = { .slot = slot };

	if (!bpf_core_field_exists(task->utask) ||
	    !bpf_core_field_exists(search.instance->stack) ||
	    !bpf_core_field_exists(search.instance->orig_ret_vaddr))
		return 0;
	search.instance = BPF_CORE_READ(task, utask, return_instances);
#pragma clang loop unroll(disable)
	for (u32 number = 0; number < MAX_RETURN_PROBES; number++)
		if (!look_at_instance(&search))
			break;
	return search.address;
}

/* Returns whether a thread is at MAX_RETURN_PROBES: the kernel then places no further return probe. */
static __always_inline bool return_probes_are_exhausted(struct task_struct___probed *task)
{
	struct uprobe_task___read *probed = NULL;

	if (!bpf_core_field_exists(task->utask) || !bpf_core_field_exists(probed->depth))
		return false;
	probed = task->utask;
	return probed && probed->depth >= MAX_RETURN_PROBES;
}

#endif
