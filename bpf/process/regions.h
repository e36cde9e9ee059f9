/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Mapping calls: mmap, munmap, mremap and brk, and with --faults madvise, sent to user space in the order in which they
 * take effect. User space interprets them (crates/process/src/regions, crates/process/src/touched); here a call is its
 * arguments, its result and its stack.
 *
 * A call at addresses that are known before it ends is sent when it begins: when it ends, another thread can already
 * have mapped or unmapped there. Every call is sent when it has ended, with all of its arguments, which makes up for a
 * missed beginning.
 *
 * With --verdict, nothing is sent, and no stack is walked: only the memory that calls give to a process is noted
 * (process/freed.h).
 */
#pragma once

#include "calls/current_stack.h"
#include "calls/regs.h"
#include "calls/return_address.h"
#include "calls/threads.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "process/freed.h"
#include "process/memory_events.h"
#include "process/pids.h"
#include "process/processes.h"
#include "store/blocks.h"

#include <bpf/bpf_core_read.h>

enum {
	/*
	 * Word of the result in the context of a program at the end of a system call's function; the word before is the
	 * registers.
	 */
	FUNCTION_RESULT = 1,
};

/* From the kernel's include/linux/mm_types.h: the fields needed here. */
struct mm_struct___break {
	unsigned long brk;
} __attribute__((preserve_access_index));

struct task_struct___mapping {
	int pid;
	struct mm_struct___break *mm;
} __attribute__((preserve_access_index));

/* From the kernel's include/uapi/linux/mman.h. */
#define MAP_PRIVATE 0x2
#define MAP_FIXED 0x10
#define MAP_ANONYMOUS 0x20
#define MAP_GROWSDOWN 0x100
#define MAP_FIXED_NOREPLACE 0x100000
#define MAP_LOCKED 0x2000
#define MAP_STACK 0x20000
#define MAP_POPULATE 0x8000

/* From the kernel's include/uapi/asm-generic/mman-common.h: the advice that discards pages. */
#define MADV_DONTNEED 4
#define MADV_FREE 8
#define MADV_REMOVE 9
#define MADV_DONTNEED_LOCKED 24

/* Wakes user space if more than a quarter of the queue is unread; it also polls the queue. */
static __always_inline u64 region_wakeup(void)
{
	u64 waiting = bpf_ringbuf_query(&region_events, BPF_RB_AVAIL_DATA);
	u64 size = bpf_ringbuf_query(&region_events, BPF_RB_RING_SIZE);

	return waiting > size / 4 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

static __always_inline struct region_event *new_region_event(u64 owner, struct pt_regs *regs,
							     enum region_call call)
{
	struct task_struct___mapping *task = (void *)bpf_get_current_task_btf();
	struct region_event *event = bpf_ringbuf_reserve(&region_events, sizeof(*event), 0);

	if (!event) {
		count(COUNTER_LOST_REGION_EVENT);
		return NULL;
	}
	event->instance = instance_of(owner);
	event->thread = task->pid;
	event->call = call;
	event->ended = 0;
	event->unused = 0;
	event->stack = 0;
	for (u32 number = 0; number < REGION_ARGUMENTS; number++)
		event->arguments[number] = syscall_argument(regs, number);
	event->result = 0;
	event->time = bpf_ktime_get_ns();
	return event;
}

static __always_inline u64 current_break(void)
{
	struct task_struct___mapping *task = (void *)bpf_get_current_task_btf();

	return BPF_CORE_READ(task, mm, brk);
}

/* Returns whether the call can change mappings or discard pages: most advice does neither. */
static __always_inline bool has_effect(struct pt_regs *regs, enum region_call call)
{
	u64 advice = syscall_argument(regs, 2);

	return call != CALL_MADVISE || advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE ||
	       advice == MADV_DONTNEED_LOCKED;
}

/* Returns whether it is known at the beginning of a call where it acts; other calls are sent at their end only. */
static __always_inline bool acts_on_known_addresses(struct pt_regs *regs, enum region_call call)
{
	u64 flags = syscall_argument(regs, 3);

	return call != CALL_MMAP || flags & (MAP_FIXED | MAP_FIXED_NOREPLACE);
}

/*
 * Returns the registers at the system call: pc is the address after its instruction. The pointer is to the kernel's own
 * structure, as a copy would take half of the BPF stack on AArch64.
 */
static __always_inline struct pt_regs *user_registers(void)
{
	return (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
}

/*
 * Returns the start of a walk from a system call, with the link register: the caller need not have saved its return
 * address.
 */
static __always_inline struct caller caller_of_kernel(struct pt_regs *regs)
{
	return (struct caller){ .pc = program_counter(regs), .sp = regs->sp, .link = link_of(regs) };
}

static __always_inline u64 region_owner(void)
{
	return owner_of_process(current_tgid());
}

static __always_inline bool is_error(u64 result)
{
	return result > -4096ULL;
}

/* Returns `address`, or the next one where a page begins. */
static __always_inline u64 page_end(u64 address)
{
	u64 page = 1ULL << page_shift;

	return (address + page - 1) & ~(page - 1);
}

/* Returns whether the current thread makes a system call, with `regs`, within an allocator's function. */
static __always_inline bool is_allocators(struct pt_regs *regs, u64 owner)
{
	struct thread *thread = known_thread();
	struct way_back back = { .slot = regs->sp };
	struct call *call;
	bool is_probed;
	u64 kept;

	if (!thread || thread->owner != owner)
		return false;
	call = &thread->call;
	is_probed = call->end == SEEN_BY_RETURN_PROBE;
	/* In other states, the thread can have left the function without its end being seen. */
	if (!call->return_slot || back.slot >= call->return_slot || (!is_probed && call->end != SEEN_BY_RET) ||
	    !read_kept_address(call->return_slot, is_probed ? 0 : call->return_address, back, &kept))
		return false;
	return is_probed ? is_trampoline(kept) : kept && kept == call->return_address;
}

/*
 * Notes the memory that a brk that begins will give to its process; before it is known to succeed, as the old break is
 * known only now.
 */
static __always_inline void brk_gives(void)
{
	u64 owner = region_owner();
	struct pt_regs *regs = user_registers();
	u64 from = current_break(), to = syscall_argument(regs, 0);

	if (!owner)
		return;
	if (is_32_bit(regs))
		doubt_for_good(instance_of(owner), DOUBT_LOST_MAPPING);
	else if (from < to)
		note_taken(instance_of(owner), from, page_end(to), is_allocators(regs, owner));
}

/* Notes the memory that an mmap or mremap has given to its process. */
static __always_inline void mapping_gives(enum region_call call, u64 start)
{
	u64 owner = region_owner();
	struct pt_regs *regs = user_registers();
	u64 bytes = syscall_argument(regs, call == CALL_MREMAP ? 2 : 1), flags = syscall_argument(regs, 3);
	/*
	 * Not new: moved memory, which has contents; fixed addresses, where the loader and others map objects; stacks,
	 * which the C library hands on.
	 */
	u64 kinds = MAP_ANONYMOUS | MAP_PRIVATE | MAP_FIXED | MAP_STACK;
	bool is_new = call == CALL_MMAP && (flags & kinds) == (MAP_ANONYMOUS | MAP_PRIVATE);

	if (!owner || is_error(start))
		return;
	if (is_32_bit(regs))
		doubt_for_good(instance_of(owner), DOUBT_LOST_MAPPING);
	else if (call == CALL_MMAP && flags & MAP_GROWSDOWN)
		doubt_for_good(instance_of(owner), DOUBT_GROWING_MAPPING);
	else
		note_taken(instance_of(owner), start, page_end(start + bytes), is_new && is_allocators(regs, owner));
}

static __always_inline void region_call_begins(enum region_call call)
{
	u64 owner = region_owner();
	struct pt_regs *regs = user_registers();
	struct region_event *event;

	if (notes_frees) {
		if (call == CALL_BRK)
			brk_gives();
		return;
	}

	if (!owner || is_32_bit(regs) || !has_effect(regs, call) || !acts_on_known_addresses(regs, call))
		return;
	event = new_region_event(owner, regs, call);
	if (!event)
		return;
	if (call == CALL_BRK)
		event->result = current_break();
	bpf_ringbuf_submit(event, region_wakeup());
}

/* Returns the bytes mapped by a call that could not be sent; 0 for brk, whose earlier break is unknown here. */
static __always_inline u64 mapped_bytes(struct pt_regs *regs, enum region_call call)
{
	switch (call) {
	case CALL_MMAP:
		return syscall_argument(regs, 1);
	case CALL_MREMAP:
		return syscall_argument(regs, 2);
	default:
		return 0;
	}
}

/*
 * Returns whether the memory that a call maps counts for the call's stack: with --faults, only if it is made resident
 * at once.
 */
static __always_inline bool makes_mapping(struct pt_regs *regs, enum region_call call)
{
	if (call == CALL_MUNMAP || call == CALL_MADVISE)
		return false;
	return !traces_faults || (call == CALL_MMAP && syscall_argument(regs, 3) & (MAP_POPULATE | MAP_LOCKED));
}

/* `value` is the call's result. */
static __always_inline void region_call_ends(enum region_call call, u64 value)
{
	u64 owner = region_owner();
	u32 function = traces_faults ? fault_function : MAX_FUNCTIONS - REGION_CALLS + call;
	struct pt_regs *regs = user_registers();
	struct region_event *event;
	u32 stack = 0;

	if (notes_frees) {
		if (call == CALL_MMAP || call == CALL_MREMAP)
			mapping_gives(call, value);
		return;
	}
	if (!owner || is_32_bit(regs) || !has_effect(regs, call))
		return;

	bool maps = makes_mapping(regs, call) && !is_error(value);

	/* A brk whose result is not its argument failed, or only queried the break: it maps nothing. */
	if (call == CALL_BRK && syscall_argument(regs, 0) != value)
		maps = false;
	if (maps)
		stack = current_stack(regs, NULL, caller_of_kernel(regs), owner, function);
	event = new_region_event(owner, regs, call);
	if (!event) {
		/* With --faults, only pages are lost, and user space finds them. */
		if (maps && !traces_faults)
			lose_block(COUNTER_LOST_REGION, mapped_bytes(regs, call), WEIGHT_ONE, stack);
		return;
	}
	event->ended = 1;
	event->stack = stack;
	event->result = value;
	bpf_ringbuf_submit(event, region_wakeup());
}
