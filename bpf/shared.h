/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Types shared by the kernel side and user space: the only hand-written declaration of them. User space gets them
 * through BTF; src/bpf/layout.rs fails the build if they differ from those of the unwind-tables crate.
 *
 * Units are bytes and nanoseconds. Addresses are AVMAs unless the comment says SVMA.
 */
#pragma once

#include "kernel.h"

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

/* Bounds. Whatever exceeds one is counted or reported. */
enum limits {
	/* Frames of one walk; the walk of a deeper stack ends there (END_DEPTH_LIMIT). */
	MAX_DEPTH = 4096,
	/* Frames that are kept of one walk: of a deeper stack, the innermost and the outermost (walk/kept_frames.h). */
	MAX_FRAMES = 512,
	INNERMOST_FRAMES = 256,
	OUTERMOST_FRAMES = 256,
	/* Maximum distance from the stack pointer to a frame pointer that a frame-pointer step accepts. */
	MAX_FP_DISTANCE = 1 << 20,
	/* Maximum number of slots of a frame of code without CFI that are searched for a skipped frame. */
	MAX_FRAME_SLOTS = 2048,
	/* Bytes of a function in which a jump to another one is looked for. */
	JUMPS_LOOKED_FOR = 120,
	/* Bytes of code in which a function's return is looked for. */
	RETURN_LOOKED_FOR = 8 * JUMPS_LOOKED_FOR,
	/* Times that a walk goes down to another stack, which lies lower. */
	MAX_STACK_SWITCHES = 8,
	/* Frames that one walk inspects, in total, to find saved registers (END_LOOK_LIMIT). */
	MAX_LOOKS = 4096,
	/* Process slots; slot 0 belongs to none, see struct process. */
	MAX_PROCESSES = 2048,
	/* Instance numbers in one trace; processes beyond are not traced and counted as lost. */
	MAX_INSTANCES = 1 << 16,
	/* Processes without a slot that share a traced one's memory (vfork). */
	MAX_SHARERS = 960,
	/* Entries of the user side's function table. */
	MAX_FUNCTIONS = 256,
	/* First stack record of a walked stack; those before it have fixed meanings, see struct stack_record. */
	FIRST_STACK = 2 * MAX_FUNCTIONS,
	/* Nested pid namespaces, the initial one included (MAX_PID_NS_LEVEL). */
	MAX_PID_LEVELS = 33,
	/* Return probes of one thread at once: the kernel's limit (MAX_URETPROBE_DEPTH). */
	MAX_RETURN_PROBES = 64,
	/* Words of a mapping that a walk compares to recognize its object. */
	MAPPING_CHECKS = 2,
	/* Walks that can preempt one another on one CPU; a further one is not done. */
	SCRATCH_PER_CPU = 4,
	/* Frames of a stack that the kernel walks (benchmarks). */
	KERNEL_STACK_FRAMES = 127,
	/* Counts of blocks in the block table, by hash of their keys; a power of two. */
	ALIKE_COUNTS = 1 << 16,
	/* Arguments of a mapping call in a region event. */
	REGION_ARGUMENTS = 5,
	/* Different places of arguments among all USDT probes. */
	MAX_USDT_SITES = 256,
	/* Arguments of a USDT probe that are read. */
	USDT_ARGUMENTS = 3,
};

/* Why a walk ended. Exactly one per walk. */
enum end_cause {
	END_COMPLETE = 0,
	END_NO_MAPPING = 1,
	END_ANONYMOUS_CODE = 2,
	END_NO_CFI = 3,
	END_UNSUPPORTED_RULE = 4,
	END_READ_FAULT = 5,
	END_NO_PROGRESS = 6,
	END_DEPTH_LIMIT = 7,
	END_TABLE_NOT_LOADED = 8,
	END_URETPROBE_TRAMPOLINE = 9,
	END_FP_CHAIN_END = 10,
	END_SCRATCH_BUSY = 11,
	END_STACK_TABLE_FULL = 12,
	END_KERNEL_UNWINDER = 13,
	END_LOOK_LIMIT = 14,
	END_BEYOND_COPY = 15,
	END_NO_TABLE = 16,
	END_CALLERS_UNCERTAIN = 17,
	END_CAUSES,
	/* Not a cause: the walk continues. */
	END_NONE = 255,
};

/* How a frame was found. */
enum found_by {
	FOUND_BY_PROBE = 0,
	FOUND_BY_CFI = 1,
	FOUND_BY_FP = 2,
	FOUND_BY_KERNEL = 3,
	FOUND_BY_FP_GENERATED = 4,
	/* By no walk: user space places the functions of Python between the frames of their interpreter. */
	FOUND_BY_PYTHON = 5,
	/* By a frame pointer that may be that of another frame: callers may be missing before this one. */
	FOUND_BY_FP_UNCERTAIN = 6,
};

/*
 * A stored frame: the return address in the low bits, above it enum found_by, and the highest bit set if the address is
 * exact: that of the interrupted instruction, not of the one after a call.
 */
enum frame_layout {
	FRAME_FOUND_BY_SHIFT = 56,
	FRAME_EXACT_SHIFT = 63,
};

/* Kinds of executable mappings, by how a walk gets rules for their code. */
enum mapping_kind {
	MAPPING_TABLE = 0,
	MAPPING_PENDING = 1,
	MAPPING_NO_CFI = 2,
	MAPPING_ANONYMOUS = 3,
	MAPPING_TRAMPOLINE = 4,
	/* Anonymous, of a program whose generated code is known to keep frame pointers. */
	MAPPING_ANONYMOUS_LINKED = 5,
	/* Anonymous, where all code is known to keep frame pointers. */
	MAPPING_ANONYMOUS_METHODS = 6,
	/* Anonymous: a stub that calls native code with the frame pointer pushed, at the stack pointer, but not set. */
	MAPPING_ANONYMOUS_STUB = 7,
	MAPPING_NO_TABLE = 8,
	/* Anonymous, of a program whose generated functions are known to begin by pushing the frame pointer. */
	MAPPING_ANONYMOUS_PUSHED = 9,
};

/* Bits: checks that a walk must pass before it uses an entry of the mapping list. */
enum mapping_trust {
	/* No check: it cannot be unloaded while its program runs. */
	TRUST_SETTLED = 0,
	/* The process's memory must hold the words of its checks. */
	TRUST_CHECKED = 1,
	/* No change of the mappings may be announced. */
	TRUST_UNCHANGED = 2,
	/* Both, for an object whose checks alone do not identify it. */
	TRUST_CHECKED_UNCHANGED = 3,
};

/* A word that the process's memory holds at `at` while the list's entry is valid. */
struct mapping_check {
	u64 at;
	u64 word;
};

/*
 * One executable mapping, below 2^ADDRESS_BITS. User space writes a whole list, in ascending order, then makes it
 * active.
 */
struct mapping {
	u64 start;
	u64 end;
	/* AVMA minus SVMA. */
	u64 bias;
	/* Index in `tables` of the table image's first word, for MAPPING_TABLE. */
	u32 image_at;
	/* enum mapping_kind. */
	u8 kind;
	/* enum mapping_trust. */
	u8 trust;
	u16 unused;
	struct mapping_check checks[MAPPING_CHECKS];
};

/*
 * An instance is what runs in a process between two execs. Its number is never reused; 0 means none. A slot is the
 * kernel side's storage for one instance at a time: two mapping lists and two rule caches.
 *
 * A slot's state is one word, so that a walk never uses the lists of one instance for another:
 *
 *    bit 32..63   the instance; 0 while the slot has none
 *    bit 0..31    the generation: number of times that its mappings were published. 0: not yet. GENERATION_ENDING: it
 *                 is in exec, and its mappings are no longer those of its program. Bit 0 selects the active one of
 *                 the two lists. Without an instance: enum slot_state.
 *
 * Only the kernel side ends a running instance, and only user space frees its slot, after all walks in it have ended.
 * Both change the state by an exchange that fails if the other was first.
 */
enum generation {
	GENERATION_NONE = 0,
	GENERATION_ENDING = 0xffffffff,
};

enum slot_state {
	SLOT_FREE = 0,
	/* The slot's instance has ended; user space must free the slot. */
	SLOT_CLOSED = 1,
	/* A probe has reserved the slot and is about to begin an instance in it. */
	SLOT_TAKEN = 2,
};

/* A process slot. Slot 0 belongs to none: its first list is one mapping of all addresses, whose table is not loaded. */
struct process {
	u64 state;
	/*
	 * State of the slot whose active list this process uses until it has its own: a child of fork starts with its
	 * parent's mappings. Valid while that slot has the same instance: user space clears this before it rewrites a
	 * list that is borrowed. 0: none.
	 */
	u64 borrowed;
	/* Epoch of each list. It increases when an address starts to mean other code. 0 while there is no own list. */
	u32 epochs[2];
	/* Slot whose state `borrowed` is. */
	u32 lender;
	/* Process id (tgid). */
	u32 tgid;
	/* enum reload_request. Set by the first walk that meets an unknown mapping; reset by user space. */
	u64 reload_requested;
	/* Number of changes of the mappings that the loader announced. Counted by a probe. */
	u64 changes_announced;
	/* Value of `changes_announced` when user space began to read the mappings that it published last. */
	u64 changes_published;
	/* Time of the last announced change: microseconds of CLOCK_MONOTONIC, modulo 2^32. Written by a probe. */
	u64 changed_at;
};

/* Bits of `reload_requested`. */
enum reload_request {
	/* A walk has requested a reload of the mappings, or saves. */
	RELOAD_REQUESTED = 1,
	/* The last reload requested has found nothing new. */
	RELOAD_IN_VAIN = 2,
	/* A JVM starts up: walks that end in generated code wait for facts about it. Set and reset by user space. */
	RELOAD_JVM_BEGINS = 4,
	/* The saves requested last are not available. */
	RELOAD_SAVES_IN_VAIN = 8,
};

/* Beginnings of names of programs that may translate code (`process::translator`). */
enum translator_shape {
	TRANSLATORS = 4,
};

/* How an instance began. */
enum instance_origin {
	ORIGIN_ATTACHED = 0,
	ORIGIN_FORKED = 1,
	ORIGIN_EXECED = 2,
};

/* How an instance ended. */
enum instance_end {
	INSTANCE_RUNS = 0,
	INSTANCE_EXITED = 1,
	INSTANCE_EXECED = 2,
	/* Still runs, but is no longer traced. */
	INSTANCE_LEFT = 3,
	/* The kernel killed it for lack of memory. */
	INSTANCE_OUT_OF_MEMORY = 4,
};

/* An instance, by its number. All fields but `end` are written when it begins. */
struct instance {
	/* Process id (tgid). Written last: 0 until the other fields are valid. */
	u32 tgid;
	u32 slot;
	/* Instance that it was forked from, or that it replaced in its process; 0 for none. */
	u32 parent;
	/* Epoch of the parent at the fork, if it has one; else 0. */
	u32 parent_epoch;
	/* enum instance_origin. */
	u8 origin;
	/* enum instance_end. */
	u8 end;
	/* Set if a thread other than the first called exec: probes attached to this process only do not follow it. */
	u8 by_other_thread;
	/* Set if exec executed a program without a loader. */
	u8 without_loader;
	u32 unused;
	/* Thread name (comm) when it began. */
	char comm[16];
};

/* Effects of a probed function on blocks. */
enum role {
	ROLE_ALLOCATE = 0,
	ROLE_RESIZE = 1,
	ROLE_FREE = 2,
	/* Resizes; frees the block if that fails. */
	ROLE_RESIZE_OR_FREE = 3,
	/* Resizes without moving the block; returns its size, which is smaller than requested if that fails. */
	ROLE_RESIZE_IN_PLACE = 4,
};

/* Kernel mode: allocators, in the order of the user side's table. */
enum kernel_allocator {
	KERNEL_KMALLOC = 0,
	KERNEL_CACHE = 1,
	KERNEL_PAGES = 2,
	KERNEL_PERCPU = 3,
};

/* Kernel mode: events that have two programs each, see kernel_memory.h. */
enum kernel_event {
	EVENT_KMALLOC,
	EVENT_KMALLOC_NODE,
	EVENT_CACHE_ALLOC,
	EVENT_CACHE_ALLOC_NODE,
	EVENT_KFREE,
	EVENT_CACHE_FREE,
	EVENT_PAGE_ALLOC,
	EVENT_PAGE_FREE,
	EVENT_PERCPU_ALLOC,
	EVENT_PERCPU_FREE,
	KERNEL_EVENTS,
};

/* Kernel mode: spaces of the addresses in keys of blocks. Each can contain the same number. */
enum kernel_space {
	/* Addresses that kmalloc and the caches return. */
	SPACE_SLAB = 1,
	/* Address of the descriptor of a block's first page. */
	SPACE_PAGE = 2,
	/* Addresses that the per-CPU allocator returns. */
	SPACE_PERCPU = 3,
};

/* Kernel mode: constants of the kernel. */
enum kernel_limits {
	/* Address that kmalloc returns for 0 bytes (ZERO_SIZE_PTR). */
	ZERO_SIZE_BLOCK = 16,
	/* Maximum order: the largest block has 2^10 pages. */
	MAX_PAGE_ORDER = 10,
	PAGE_SHIFT = 12,
	PAGE_BYTES = 1 << PAGE_SHIFT,
};

/* Key of the block table. */
struct block_key {
	u64 address;
	/* In kernel mode: enum kernel_space. */
	u32 instance;
	u32 unused;
};

/* A block that was allocated and not freed. */
struct block {
	u64 size;
	/* CLOCK_MONOTONIC in nanoseconds, without THREAD_NAME_BITS; early by up to a tick, see time_of in
	 * calls/threads.h. */
	u64 allocated_at;
	/* Index of the stack record. */
	u32 stack;
	/* Number of blocks it stands for: an IEEE 754 single, at least 1. */
	u32 weight;
};

/* Low bits of the word of a young place. */
enum young_state {
	YOUNG_EMPTY = 0,
	/* A probe is writing to it. */
	YOUNG_BUSY = 1,
	YOUNG_FULL = 2,
	/* Mask of the values above. */
	YOUNG_STATE = 3,
	/* Set while the block that is or was in the place is being moved to the block table. */
	YOUNG_MOVING = 4,
	/* Lowest bit of the count of blocks put there. */
	YOUNG_PUT = 8,
};

/* A young place, see store/young.h. */
struct young_block {
	/* Bits of enum young_state below the count of blocks put there: never the same for two blocks. */
	u64 word;
	struct block_key key;
	struct block block;
	u64 unused[2];
};

/*
 * A stack record. Frames and all fields but the losses are written once, before the record's index is published.
 *
 * The first MAX_FUNCTIONS records stand for "walked but not stored", the next MAX_FUNCTIONS for "not walked": one per
 * function, for all instances together.
 */
struct stack_record {
	u64 id;
	/* AVMA where the walk ended. */
	u64 end_pc;
	/* Index of its first place in `frames`, where frames are by place (walk/kept_frames.h). */
	u32 frames_at;
	/* Number of frames of the walk that found it first, including those that were left out. */
	u16 frame_count;
	/* enum end_cause. */
	u8 end;
	/* Index into the user side's function table. */
	u8 function;
	u32 epoch;
	u32 instance;
	/* Blocks allocated from it that were lost: they are neither in totals nor stored. */
	u64 lost_bytes;
	u64 lost_blocks;
	/* Number of the chain of Python frames; 0 for none. */
	u32 python;
	u32 unused;
	u64 unused_too;
};

/*
 * An amount. A sampled block adds its size times its weight to `bytes`, 1 to `blocks`, and its weight to `weight`, in
 * units of 2^-WEIGHT_SHIFT (`weight` stays 0 if all blocks are recorded).
 */
struct sums {
	u64 bytes;
	u64 blocks;
	u64 weight;
	u64 unused;
};

/* Totals of the blocks allocated from a stack and of those of them that were freed, by index of the stack record. */
struct stack_totals {
	struct sums allocated;
	struct sums freed;
};

/* A sum of 128 bits. */
struct wide {
	u64 low;
	u64 high;
};

/* Variance of an estimated amount: of bytes in bytes squared, of blocks in units of 2^-(2 * WEIGHT_SHIFT). */
struct variance {
	struct wide bytes;
	struct wide blocks;
};

/* Variances of `struct stack_totals`. The variance of the outstanding amount is allocated - freed. */
struct stack_variance {
	struct variance allocated;
	struct variance freed;
};

/* Choice of the calls to record. */
enum sampling {
	SAMPLE_ALL = 0,
	/* One of every `sampling_interval` calls of a thread, at a random position among them. */
	SAMPLE_CALLS = 1,
	/* Calls in which a byte was chosen; each byte is, with probability 1 / `sampling_interval`. */
	SAMPLE_BYTES = 2,
	/* The process chooses, and says how much each chosen block stands for (calls/usdt.h). */
	SAMPLE_PROVIDER = 3,
};

/* The current sampling interval, with --max-overhead. */
struct distance {
	/* Mean number of bytes from one chosen byte to the next. 0 and 1: all calls are recorded. */
	u64 mean;
	/* Set before the mean first rises above 1: from then on, not all calls may have been recorded. */
	u64 has_risen;
};

enum weight_shape {
	/* Fraction bits of a weight in computations. */
	WEIGHT_SHIFT = 16,
	/* Stored form of a weight of 1. */
	WEIGHT_ONE = 0x3f800000,
};

/* Per-CPU counters. Those named ..._BYTES count bytes, all others events. */
enum counter {
	/* A call that failed to allocate. */
	COUNTER_FAILED = 0,
	/* A free of an unknown block: allocated before the attach, or lost. */
	COUNTER_UNKNOWN_FREE = 1,
	/* An address allocated again without a free recorded in between. */
	COUNTER_MISSED_FREE = 2,
	/* An allocator call that never returned (longjmp, thread exit). */
	COUNTER_ABANDONED_CALL = 3,
	/* A block not recorded: no memory for the thread's state. */
	COUNTER_LOST_THREAD_STATE = 4,
	COUNTER_LOST_THREAD_STATE_BYTES = 5,
	/* A block not recorded: the block table is full. */
	COUNTER_LOST_BLOCK_TABLE = 6,
	COUNTER_LOST_BLOCK_TABLE_BYTES = 7,
	/* A block not recorded: its address could not be read. */
	COUNTER_LOST_RESULT_FAULT = 8,
	COUNTER_LOST_RESULT_FAULT_BYTES = 9,
	/* An event not sent to user space: the queue was full. */
	COUNTER_LOST_EVENT = 10,
	/* Probe hits of allocation functions, nested calls included. */
	COUNTER_PROBE_HITS = 11,
	/* A process not traced that should be: no slot or instance number was left. */
	COUNTER_LOST_PROCESS = 12,
	/* A call not recorded: its size is outside of -z and -Z. */
	COUNTER_FILTERED = 13,
	COUNTER_FILTERED_BYTES = 14,
	/* A block not recorded: its function's return is not probed, as the thread is at MAX_RETURN_PROBES. */
	COUNTER_LOST_RETURN_PROBE = 15,
	COUNTER_LOST_RETURN_PROBE_BYTES = 16,
	/* A mapping call not sent to user space: the queue was full. */
	COUNTER_LOST_REGION_EVENT = 17,
	/* A mapping call not sent to user space that made a mapping. */
	COUNTER_LOST_REGION = 18,
	COUNTER_LOST_REGION_BYTES = 19,
	/* Kernel mode: an event recorded by its second program, since the first was running on that CPU. */
	COUNTER_NESTED_ALLOCATION = 20,
	COUNTER_NESTED_FREE = 21,
	/* An unknown free called by the allocator's own module. */
	COUNTER_OWN_UNKNOWN_FREE = 22,
	/*
	 * Tests: walks repeated without fast paths, walks that a memo saved, repeated walks that found another stack.
	 */
	COUNTER_CHECKED_WALK = 23,
	COUNTER_RECALLED_WALK = 24,
	COUNTER_DIFFERENT_WALK = 25,
	/* A call not sent to user space (-t): the queue was full. */
	COUNTER_LOST_CALL_EVENT = 26,
	/* Probe hits of `ret` instructions. */
	COUNTER_RET_HITS = 27,
	/* A page fault not sent to user space: the queue was full. */
	COUNTER_LOST_FAULT_EVENT = 28,
	/* As COUNTER_NESTED_FREE, of a mapping call. */
	COUNTER_NESTED_REGION_CALL = 29,
	/* A walk that user space could have finished, not sent there: there was no room. */
	COUNTER_LOST_DEFERRAL = 30,
	COUNTERS,
};

enum event_kind {
	/* A walk met an address that no mapping of the active list holds. */
	EVENT_UNKNOWN_MAPPING = 0,
	/* The loader announced a change of the mappings. */
	EVENT_MAPPINGS_CHANGED = 1,
	/* An instance began or ended, see `instances`. */
	EVENT_LIFECYCLE = 2,
	/* A walk needs the saves of the object at an address, which are not loaded. */
	EVENT_SAVES_WANTED = 3,
	/* The program that memleak has started is stopped where it is about to end. */
	EVENT_ENDING = 4,
	/* A process may belong to the selected ones now, or no longer. */
	EVENT_MEMBERS = 5,
	/* A process was started that shares the memory of an instance; `address` is its process id. */
	EVENT_SHARED = 6,
	/* The program that memleak has started is stopped after an exec, until user space has attached to it. */
	EVENT_STOPPED = 7,
};

struct event {
	enum event_kind kind;
	u32 instance;
	u64 address;
};

/* Extent of the call trace (-t). */
enum call_trace {
	CALL_TRACE_OFF = 0,
	/* Results of calls: blocks allocated and freed, and failures. */
	CALL_TRACE_ENDS = 1,
	/* Results and beginnings. */
	CALL_TRACE_ALL = 2,
};

enum call_event_kind {
	/* Call of a function that allocates, whose block is to be recorded. */
	CALL_BEGINS = 0,
	/* Return of a call with a block. */
	BLOCK_ALLOCATED = 1,
	/* Return of a call that failed. */
	CALL_FAILED = 2,
	/* Free or resize of a known block. */
	BLOCK_FREED = 3,
	/* Free or resize of an unknown block. */
	UNKNOWN_FREED = 4,
};

struct call_event {
	/* CLOCK_MONOTONIC. */
	u64 time;
	/* Address of the block; 0 if there is none. */
	u64 address;
	/* Size of the block; 0 if unknown. */
	u64 size;
	/* enum call_event_kind. */
	u32 kind;
	u32 instance;
	/* Ids in the initial pid namespace. */
	u32 process;
	u32 thread;
	/* Index of the stack record that allocated the block, also for a free. */
	u32 stack;
	u32 cpu;
	char comm[16];
};

_Static_assert(sizeof(struct call_event) == 64, "user space reads it as eight words");
_Static_assert(sizeof(struct mapping) == 64, "a mapping is one cache line");
_Static_assert(sizeof(struct process) == 64, "user space reads it as eight words");
_Static_assert(sizeof(struct instance) == 40, "user space reads it as five words");
_Static_assert(sizeof(struct young_block) == 64, "a place is one cache line");
_Static_assert(sizeof(struct stack_record) == 64, "a stack record is one cache line");
_Static_assert(sizeof(struct stack_totals) == 64, "a stack's totals are one cache line");
_Static_assert(sizeof(struct stack_variance) == 64, "a stack's variance is one cache line");
