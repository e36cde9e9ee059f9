/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The BPF programs that trace processes, and their attach points. One program per role; the attach cookie describes a
 * function's arguments. User space loads the session program where the kernel supports it, else the entry and return
 * programs.
 */
#include "calls/calls.h"
#include "calls/usdt.h"
#include "process/faults.h"
#include "process/lifecycle.h"
#include "process/started.h"
#include "process/translated.h"
#include "process/regions.h"
#include "process/takes.h"
#include "running.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Keeps types that no map refers to in BTF, where src/bpf/layout.rs compares them. */
struct compared {
	enum limits limits;
	enum machine machine;
	enum cache_shape cache_shape;
	enum found_by found_by;
	enum frame_layout frame_layout;
	enum role role;
	enum cookie_shift cookie_shift;
	enum shared_events shared_events;
	enum counter counter;
	enum sampling sampling;
	enum weight_shape weight_shape;
	enum block_facts block_facts;
	struct block block;
	enum young_state young_state;
	struct stack_totals totals;
	struct stack_variance variance;
	struct distance distance;
	enum event_kind event_kind;
	enum slot_state slot_state;
	enum generation generation;
	enum instance_origin instance_origin;
	enum instance_end instance_end;
	enum end_cause end_cause;
	enum mapping_kind mapping_kind;
	enum mapping_trust mapping_trust;
	enum image_header image_header;
	enum image_shape image_shape;
	enum rule_kind rule_kind;
	enum rule_shape rule_shape;
	enum stop_operand stop_operand;
	enum opcode opcode;
	enum program_shape program_shape;
	enum register_number register_number;
	enum saved_kind saved_kind;
	enum saves_shape saves_shape;
	struct event event;
	enum region_call region_call;
	struct region_event region_event;
	struct fault_event fault_event;
	enum take_kind take_kind;
	struct take_event take_event;
	enum call_trace call_trace;
	enum call_event_kind call_event_kind;
	struct call_event call_event;
	enum kernel_allocator kernel_allocator;
	enum usdt_kind usdt_kind;
	struct usdt_site usdt_site;
	enum freed_memory freed_memory;
	struct freed_block freed_block;
	struct taken_range taken_range;
	enum doubt doubt;
	enum reload_request reload_request;
	enum translator_shape translator_shape;
	enum deferral deferral;
	struct deferred_walk deferred_walk;
	enum python_limits python_limits;
	enum python_entry python_entry;
	enum python_noted python_noted;
	enum python_string python_string;
	enum python_end python_end;
	enum python_frame_layout python_frame_layout;
	enum python_code_number python_code_number;
	enum python_instruction python_instruction;
	enum python_lines_at python_lines_at;
};
const volatile struct compared compared = {};

/* A constant to the verifier, which leaves out code that depends on it, but not to the compiler. */
const volatile bool never = false;

/*
 * First statement of each program for uprobes. Since 6.13 (x86-64; arm64 later), the kernel gives functions of such
 * programs a stack for each CPU ("private stack"). But it preempts them, and the next thread on that CPU then
 * overwrites the stack of the first, which continues with garbage: the kernel writes to wild addresses. A program with
 * a tail call uses the stack of its thread. This tail call is never made.
 */
static __always_inline void use_thread_stack(struct pt_regs *ctx)
{
	if (never)
		bpf_tail_call(ctx, NULL, 0);
}

/*
 * Returns whether a session program runs at a return: then the context's address is the one that the function returned
 * to. The kernel's own function for this (bpf_session_is_return) is not used: its form depends on the version.
 */
static __always_inline bool is_at_return(struct pt_regs *ctx)
{
	return ctx->PROGRAM_COUNTER != bpf_get_func_ip(ctx);
}

/*
 * Entry and return in one; returns 1 at the entry to skip the return of calls that need none. Also attached to each
 * `ret` of a function that can throw: unwinding past a return probe would terminate the target.
 */
SEC("uprobe.session")
int allocation_session(struct pt_regs *ctx)
{
	bool at_ret = !is_at_return(ctx);

	use_thread_stack(ctx);
	/* Each call of the kernel takes some 7 ns: a return needs no cookie. */
	if (at_ret) {
		u64 cookie = bpf_get_attach_cookie(ctx);

		if (!is_at_ret(cookie))
			return begin_call(ctx, cookie) ? 0 : 1;
	}
	end_call(ctx, at_ret);
	/* Skips the return of a call that ends at its `ret`; at a return, the kernel does not use the value. */
	return 1;
}

SEC("uprobe")
int allocation_entry(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	begin_call(ctx, cookie_of_probe(ctx));
	return 0;
}

/* Attached to returns, or to each `ret` of a function that can throw. */
SEC("uretprobe")
int allocation_return(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	end_call(ctx, is_at_ret(cookie_of_probe(ctx)));
	return 0;
}

SEC("uprobe")
int free_entry(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	free_call(ctx, cookie_of_probe(ctx));
	return 0;
}

/* Attached to the USDT probes of a process that samples its allocations itself. */
SEC("uprobe")
int usdt_allocation(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	usdt_allocated(ctx, cookie_of_probe(ctx));
	return 0;
}

SEC("uprobe")
int usdt_free(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	usdt_freed(ctx, cookie_of_probe(ctx));
	return 0;
}

/*
 * Empty programs, attached to a function that memleak calls itself to measure the time of a trap. For a session, a
 * cookie other than 0 skips the return.
 */
SEC("uprobe.session")
int calibration_session(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	if (is_at_return(ctx))
		return 0;
	return bpf_get_attach_cookie(ctx) ? 1 : 0;
}

SEC("uprobe")
int calibration_entry(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	return 0;
}

SEC("uretprobe")
int calibration_return(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	return 0;
}

/* Attached to the loader hook, which is called before and after the loader maps or unmaps objects. */
SEC("uprobe")
int loader_hook(struct pt_regs *ctx)
{
	u64 owner = current_owner(known_thread());

	use_thread_stack(ctx);
	if (owner) {
		announce_change(owner);
		started_maps(owner);
	}
	return 0;
}

/*
 * Attached to the function by which the program that memleak has started ends. Stops the program, for a verdict on the
 * blocks that it has not freed.
 */
SEC("uprobe")
int exit_hook(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	if (is_started() && !bpf_send_signal(SIGNAL_STOP))
		send_event(EVENT_ENDING, 0, 0);
	return 0;
}

/* Runs, among other times, during exec: the old memory is gone and nothing of the new program is mapped. */
SEC("tp_btf/task_rename")
int process_rename(u64 *ctx)
{
	task_renamed((void *)ctx[0]);
	return 0;
}

/* Runs in the process, with its new program mapped and the caller as its only thread. */
SEC("tp_btf/sched_process_exec")
int process_exec(u64 *ctx)
{
	struct task_struct___read *task = (void *)ctx[0];
	u32 old_pid = ctx[1];

	process_executes(old_pid != (u32)task->pid);
	stop_if_translated();
	started_executes();
	return 0;
}

SEC("tp_btf/sched_process_exit")
int process_exit(u64 *ctx)
{
	thread_exits();
	return 0;
}

/* Runs in the parent, before the child runs. */
SEC("tp_btf/sched_process_fork")
int process_fork(u64 *ctx)
{
	process_forks((void *)ctx[0], (void *)ctx[1]);
	return 0;
}

/* Runs when a process or a thread is put into another cgroup. */
SEC("tp_btf/cgroup_attach_task")
int cgroup_attach(u64 *ctx)
{
	members_change();
	return 0;
}

/* Removes the blocks of ended instances, and the notes on their freed memory. Run by user space. */
SEC("syscall")
int forget_blocks(void *ctx)
{
	if (keeps_young())
		bpf_loop(young_mask + 1, forget_young, NULL, 0);
	bpf_for_each_map_elem(&blocks, forget_ended, NULL, 0);
	if (notes_frees) {
		bpf_for_each_map_elem(&freed_blocks, forget_note, NULL, 0);
		bpf_for_each_map_elem(&taken_ranges, forget_note, NULL, 0);
	}
	return 0;
}

/* Attached to the function that ends a code object of Python, which is its only argument. */
SEC("uprobe")
int python_code_end(struct pt_regs *ctx)
{
	use_thread_stack(ctx);
	python_code_ends(ctx->ARGUMENT_1);
	return 0;
}

/*
 * Programs at the beginning and end of a mapping call: at the kernel's function of the system call, so that only these
 * calls cost anything (user space puts the machine's prefix before its name); or at the call's tracepoints, whose use
 * slows down every system call of every process. Tracepoints run with preemption disabled, so their programs need no
 * second one. User space loads one kind or the other.
 */
#define MAPPING_CALL(name, call)                                                                                       \
	PAIR_OF_PROGRAMS("fentry/" #name, name##_entry, call, COUNTER_NESTED_REGION_CALL, region_call_begins(call))           \
	PAIR_OF_PROGRAMS("fexit/" #name, name##_exit, REGION_CALLS + call, COUNTER_NESTED_REGION_CALL,                        \
			 region_call_ends(call, ctx[FUNCTION_RESULT]))                                                 \
	SEC("tp/syscalls/sys_enter_" #name)                                                                            \
	int name##_begins(void *ctx)                                                                                   \
	{                                                                                                              \
		region_call_begins(call);                                                                              \
		return 0;                                                                                              \
	}                                                                                                              \
	SEC("tp/syscalls/sys_exit_" #name)                                                                             \
	int name##_ends(void *ctx)                                                                                     \
	{                                                                                                              \
		region_call_ends(call, result(user_registers()));                                                      \
		return 0;                                                                                              \
	}

_Static_assert(2 * REGION_CALLS <= RUNNING_MARKS, "each call has two pairs of programs");
MAPPING_CALL(mmap, CALL_MMAP)
MAPPING_CALL(munmap, CALL_MUNMAP)
MAPPING_CALL(mremap, CALL_MREMAP)
MAPPING_CALL(brk, CALL_BRK)
MAPPING_CALL(madvise, CALL_MADVISE)

/*
 * Attached to the software event of page faults of each thread. Runs before the fault is handled, with preemption
 * disabled.
 */
SEC("perf_event")
int page_fault(struct perf_event_context *ctx)
{
	page_faults(ctx);
	return 0;
}

/*
 * Attached to the ends of system calls by their tracepoints: those that give a process a descriptor, or two, and those
 * that write to a file. User space has the lists of calls.
 */
SEC("tracepoint")
int descriptor_call(void *ctx)
{
	descriptor_call_ends(result(user_registers()));
	return 0;
}

SEC("tracepoint")
int socket_pair_call(void *ctx)
{
	pair_call_ends(3, result(user_registers()));
	return 0;
}

SEC("tracepoint")
int pipe_call(void *ctx)
{
	pair_call_ends(0, result(user_registers()));
	return 0;
}

SEC("tracepoint")
int write_call(void *ctx)
{
	write_call_ends(result(user_registers()));
	return 0;
}

/* Returns the unread bytes in the queue of mapping calls and page faults. Run by user space. */
SEC("syscall")
int waiting_regions(void *ctx)
{
	return bpf_ringbuf_query(&region_events, BPF_RB_AVAIL_DATA);
}
