/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What both sides see: the only hand-written declaration of it. User space gets these types through BTF;
 * src/bpf/layout.rs states that they equal what the unwind-tables crate says, or the build fails.
 *
 * Units are bytes and nanoseconds. Addresses are in the process (AVMA) unless they say SVMA.
 */
#pragma once

#include "kernel.h"

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

/* Bounds. Beyond each, something is counted or said; none is silent. */
enum limits {
	/* Frames of one walk; a deeper stack ends there. */
	MAX_FRAMES = 512,
	/* The largest distance from a stack pointer to a frame pointer that a frame-pointer step believes. */
	MAX_FP_DISTANCE = 1 << 20,
	/* Frames of one walk, in all, in which registers are looked for. */
	MAX_LOOKS = 4096,
	/* Process slots, the first of which is no process's, see struct process. */
	MAX_PROCESSES = 64,
	/* Instances that can be told apart in one trace; processes beyond are not traced and counted as lost. */
	MAX_INSTANCES = 1 << 16,
	/* Processes that can share another's memory (vfork) besides those that have a slot. */
	MAX_SHARERS = 960,
	/* Entries of the user side's function table. */
	MAX_FUNCTIONS = 256,
	/* The stack records before this one have fixed meanings, see struct stack_record. */
	FIRST_STACK = 2 * MAX_FUNCTIONS,
	/* Nested pid namespaces, the initial one included (MAX_PID_NS_LEVEL). */
	MAX_PID_LEVELS = 33,
	/* Return probes of one thread at once; the kernel makes no more (MAX_URETPROBE_DEPTH). */
	MAX_RETURN_PROBES = 64,
	/* Words that tell one object from every other. */
	MAPPING_CHECKS = 2,
	/* Walks that can preempt one another on one CPU before one is not done. */
	SCRATCH_PER_CPU = 4,
	/* Frames of a stack that the kernel walks, in benchmarks. */
	KERNEL_STACK_FRAMES = 127,
	/* Counts of blocks whose addresses are alike; a power of two. */
	ALIKE_COUNTS = 1 << 16,
	/* Arguments of a mapping call that user space is told. */
	REGION_ARGUMENTS = 5,
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
	END_CAUSES,
	/* Not a cause: the walk goes on. */
	END_NONE = 255,
};

/* How a frame was found. */
enum found_by {
	FOUND_BY_PROBE = 0,
	FOUND_BY_CFI = 1,
	FOUND_BY_FP = 2,
	FOUND_BY_KERNEL = 3,
};

/*
 * A stored frame: the raw return address, above it how the frame was found, and in the highest bit whether
 * the address is the very instruction, not one behind a call.
 */
enum frame_layout {
	FRAME_FOUND_BY_SHIFT = 56,
	FRAME_EXACT_SHIFT = 63,
};

/* What an executable mapping holds, as far as unwinding goes. */
enum mapping_kind {
	MAPPING_TABLE = 0,
	MAPPING_PENDING = 1,
	MAPPING_NO_CFI = 2,
	MAPPING_ANONYMOUS = 3,
	MAPPING_TRAMPOLINE = 4,
};

/* What it takes for an entry of the mapping list to be true: bits, none for as long as the program runs. */
enum mapping_trust {
	/* Nothing unloads it. */
	TRUST_SETTLED = 0,
	/* The process's memory holds the words of its checks. */
	TRUST_CHECKED = 1,
	/* No change of the mappings is announced. */
	TRUST_UNCHANGED = 2,
	/* Both: its checks say too little alone. */
	TRUST_CHECKED_UNCHANGED = 3,
};

/* A word that stands in the process's memory while the mapping is what the list says. */
struct mapping_check {
	u64 at;
	u64 word;
};

/*
 * One executable mapping, below 2^ADDRESS_BITS. User space writes a whole list, in ascending order, then
 * makes it the active one.
 */
struct mapping {
	u64 start;
	u64 end;
	/* Address in the process minus SVMA. */
	u64 bias;
	/* Word of the table image, for MAPPING_TABLE. */
	u32 image_at;
	/* enum mapping_kind. */
	u8 kind;
	/* enum mapping_trust. */
	u8 trust;
	u16 unused;
	struct mapping_check checks[MAPPING_CHECKS];
};

/*
 * An instance is what runs in a process between two execs. Its number is never used again; 0 is none. A slot
 * is what the kernel side keeps for one instance at a time: two mapping lists and two rule caches.
 *
 * A slot's state is one word, so that a walk never takes the lists of one instance for another's:
 *
 *    bit 32..63   the instance; 0 while the slot has none
 *    bit 0..31    the generation: how often its mappings were published. 0: not yet. GENERATION_ENDING: it
 *                 executes another program, whose mappings are not its own. Bit 0 is the active one of the two
 *                 lists. Without an instance: enum slot_state.
 *
 * Only the kernel side ends an instance that runs, and only user space frees its slot, after every walk in it
 * has ended. Both change the state by an exchange that fails if the other was first.
 */
enum generation {
	GENERATION_NONE = 0,
	GENERATION_ENDING = 0xffffffff,
};

enum slot_state {
	SLOT_FREE = 0,
	/* Its instance has ended; user space must free it. */
	SLOT_CLOSED = 1,
	/* About to get an instance. */
	SLOT_TAKEN = 2,
};

/* Slot 0 is no process's. Its first list is one mapping of everything whose table is not loaded. */
struct process {
	u64 state;
	/*
	 * The state of the slot whose active list is right for this one until it has its own: a child of fork has
	 * its parent's mappings as they were then. It is so while that slot has the same instance: user space takes
	 * back what is borrowed before it rewrites a list. 0: none.
	 */
	u64 borrowed;
	/*
	 * The epoch of each list. It rises when an address starts to mean other code; stacks of two epochs are
	 * not the same stack. 0 while lists are borrowed or there are none.
	 */
	u32 epochs[2];
	/* The slot that `borrowed` is of. */
	u32 lender;
	/* The process id (tgid). */
	u32 tgid;
	/* Set by the first walk that meets an unknown mapping; cleared by user space. */
	u64 reload_requested;
	/* How often the loader announced a change of the mappings. Counted by a probe. */
	u64 changes_announced;
	/* That count when user space began to read what it published last. */
	u64 changes_published;
	/* When the last change was announced, in microseconds of CLOCK_MONOTONIC, modulo 2^32. By a probe. */
	u64 changed_at;
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
};

/* What is known of an instance, by its number. Written when it begins, but for its end. */
struct instance {
	/* The process id (tgid). Written last: 0 until the rest is there. */
	u32 tgid;
	u32 slot;
	/* The instance that it was forked from, or that it replaced in its process; 0 for none. */
	u32 parent;
	/* For a forked one: its parent's epoch at that time. */
	u32 parent_epoch;
	/* enum instance_origin. */
	u8 origin;
	/* enum instance_end. */
	u8 end;
	/* Another thread than the first called exec: probes for the process alone do not follow it. */
	u8 by_other_thread;
	u8 unused;
	u32 unused_too;
	/* The name that its first thread had then. */
	char comm[16];
};

/* What a probed function does with blocks. */
enum role {
	ROLE_ALLOCATE = 0,
	ROLE_RESIZE = 1,
	ROLE_FREE = 2,
	/* Resizes, or frees the block if that fails. */
	ROLE_RESIZE_OR_FREE = 3,
	/* Resizes where the block is and returns the size that it then has: too small if that fails. */
	ROLE_RESIZE_IN_PLACE = 4,
};

/*
 * The attach cookie of a probe says what the function's arguments mean. Argument fields are 1-based,
 * 0 for none.
 *
 *    bit 0..7       8..11   12..15      16..19        20..23         24..27        28                       29
 *    function       role    size arg    count arg     pointer arg    result arg    returns seen by `ret`    leaf
 *
 *    bit 32..63
 *    module
 *
 * The size is the product of size and count; the pointer is the block to free or resize; the result
 * argument points to where the block's address is stored on success (status 0), if it is not returned. A leaf calls no
 * other probed function of its module: its return need not be seen for what it calls to be told from what follows.
 */
enum cookie_shift {
	COOKIE_FUNCTION = 0,
	COOKIE_ROLE = 8,
	COOKIE_SIZE = 12,
	COOKIE_COUNT = 16,
	COOKIE_POINTER = 20,
	COOKIE_RESULT = 24,
	COOKIE_BY_RET = 28,
	COOKIE_LEAF = 29,
	COOKIE_MODULE = 32,
};

/* Kernel mode: what a block is from; the user side's table has the same order. */
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

/* Kernel mode: what the address in a block's key is of. The same number can be an address in each. */
enum kernel_space {
	/* What kmalloc and the caches return. */
	SPACE_SLAB = 1,
	/* The descriptor of a block's first page. */
	SPACE_PAGE = 2,
	/* What the per-CPU allocator returns. */
	SPACE_PERCPU = 3,
};

/* Kernel mode. */
enum kernel_limits {
	/* What kmalloc returns for 0 bytes (ZERO_SIZE_PTR). */
	ZERO_SIZE_BLOCK = 16,
	/* The largest block of pages is 2^10 of them. */
	MAX_PAGE_ORDER = 10,
	PAGE_SHIFT = 12,
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
	/* CLOCK_MONOTONIC. */
	u64 allocated_at;
	/* Index of its stack's record. */
	u32 stack;
	/* How many blocks it stands for: an IEEE 754 single, at least 1. */
	u32 weight;
};

/* What is in a place for a young block. */
enum young_state {
	YOUNG_EMPTY = 0,
	/* A probe writes to it. */
	YOUNG_BUSY = 1,
	YOUNG_FULL = 2,
	/* The bits of the above in a place's word. */
	YOUNG_STATE = 3,
	/* Set while the block that is or was there is being moved to the block table. */
	YOUNG_MOVING = 4,
	/* What is added for each block that is put there. */
	YOUNG_PUT = 8,
};

/* A place for a young block, see store/young.h. */
struct young_block {
	/* What `enum young_state` says; different for each block that was ever there. */
	u64 word;
	struct block_key key;
	struct block block;
	u64 unused[2];
};

/*
 * A stack. Frames and all fields but the losses are written once, before the record's index is known to anybody
 * else.
 *
 * The first MAX_FUNCTIONS records stand for "walked but not stored", the next as many for "not walked",
 * one per function, of all instances together.
 */
struct stack_record {
	u64 id;
	/* The address that the walk could not get past. */
	u64 end_pc;
	/* First of its frames in the frame store. */
	u32 frames_at;
	u16 frame_count;
	/* enum end_cause. */
	u8 end;
	/* Index into the user side's function table. */
	u8 function;
	u32 epoch;
	u32 instance;
	/* Blocks that were allocated from it and are in no totals and not in the block table. */
	u64 lost_bytes;
	u64 lost_blocks;
	u64 unused[2];
};

/*
 * An amount of memory. Of a block that stands for several, bytes count as often as its weight says; blocks count
 * once, and their weights are summed up beside them, in units of 2^-WEIGHT_SHIFT (not when all blocks are recorded).
 */
struct sums {
	u64 bytes;
	u64 blocks;
	u64 weight;
	u64 unused;
};

/* What was allocated from a stack and what of it was freed, by the stack's index. */
struct stack_totals {
	struct sums allocated;
	struct sums freed;
};

/* A sum of 128 bits. */
struct wide {
	u64 low;
	u64 high;
};

/* The variance of an estimated amount: of bytes in bytes squared, of blocks in units of 2^-(2 * WEIGHT_SHIFT). */
struct variance {
	struct wide bytes;
	struct wide blocks;
};

/* As `struct stack_totals`. The variance of what is outstanding is the difference of the two. */
struct stack_variance {
	struct variance allocated;
	struct variance freed;
};

/* Which calls are recorded. */
enum sampling {
	SAMPLE_ALL = 0,
	/* One of each `sampling_interval` calls of a thread, at a random place among them. */
	SAMPLE_CALLS = 1,
	/* Those in which a byte was chosen; each byte is with a probability of 1 to `sampling_interval`. */
	SAMPLE_BYTES = 2,
};

/* With --max-overhead: which calls are recorded from now on. */
struct distance {
	/* The mean number of bytes from one that is chosen to the next. 0 and 1: all calls are recorded. */
	u64 mean;
	/* Set before the mean first rises above 1: some call may not have been recorded. */
	u64 has_risen;
};

enum weight_shape {
	/* Bits behind the point of a weight that is computed with. */
	WEIGHT_SHIFT = 16,
	/* A weight of 1 as it is stored. */
	WEIGHT_ONE = 0x3f800000,
};

/* Per-CPU event counts. All but those of bytes count events. */
enum counter {
	/* A call that the allocator refused. */
	COUNTER_FAILED = 0,
	/* A block freed that was not known: allocated before tracing began, or lost. */
	COUNTER_UNKNOWN_FREE = 1,
	/* An address allocated again without a free seen in between. */
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
	/* An event that user space was not told of. */
	COUNTER_LOST_EVENT = 10,
	/* Probe hits of allocation functions, nested calls included. */
	COUNTER_PROBE_HITS = 11,
	/* A process not traced though it should be: no slot, or no instance number, was left for it. */
	COUNTER_LOST_PROCESS = 12,
	/* A call not recorded: a block of that size was not asked for by -z and -Z. */
	COUNTER_FILTERED = 13,
	COUNTER_FILTERED_BYTES = 14,
	/* A block not recorded: its function's return is not seen, since the thread has all return probes it can have. */
	COUNTER_LOST_RETURN_PROBE = 15,
	COUNTER_LOST_RETURN_PROBE_BYTES = 16,
	/* A mapping call that user space was not told of: the queue was full. */
	COUNTER_LOST_REGION_EVENT = 17,
	/* Those of them that made a mapping. */
	COUNTER_LOST_REGION = 18,
	COUNTER_LOST_REGION_BYTES = 19,
	/* Kernel mode: an event taken by its second program, since the first was running on that CPU. */
	COUNTER_NESTED_ALLOCATION = 20,
	COUNTER_NESTED_FREE = 21,
	/* An unknown free that the allocator's own module called for. */
	COUNTER_OWN_UNKNOWN_FREE = 22,
	/* Tests: walks that were done again without fast paths, those of them that a memo had saved, and those of both that
	 * found another stack then. */
	COUNTER_CHECKED_WALK = 23,
	COUNTER_RECALLED_WALK = 24,
	COUNTER_DIFFERENT_WALK = 25,
	/* A call that user space was not told of (-t): the queue was full. */
	COUNTER_LOST_CALL_EVENT = 26,
	COUNTERS,
};

enum event_kind {
	/* A walk met an address that no mapping of the active list holds. */
	EVENT_UNKNOWN_MAPPING = 0,
	/* The loader announced a change of the mappings. */
	EVENT_MAPPINGS_CHANGED = 1,
	/* An instance began or ended: `instances` says which. */
	EVENT_LIFECYCLE = 2,
	/* A walk must know where the object at an address saves registers, and its table does not say it. */
	EVENT_SAVES_WANTED = 3,
};

struct event {
	enum event_kind kind;
	u32 instance;
	u64 address;
};

/* A system call that changes a process's mappings. Its function number is behind those of all functions. */
enum region_call {
	CALL_MMAP = 0,
	CALL_MREMAP = 1,
	CALL_BRK = 2,
	CALL_MUNMAP = 3,
	REGION_CALLS,
};

/* A mapping call that is about to take mappings away, or that has ended. */
struct region_event {
	u32 instance;
	/* The thread's id, in the initial pid namespace. */
	u32 thread;
	/* enum region_call. */
	u8 call;
	u8 ended;
	u16 unused;
	/* Index of its stack's record, if it made a mapping. */
	u32 stack;
	u64 arguments[REGION_ARGUMENTS];
	/* Of an ended call. Of a brk that begins: the break. */
	u64 result;
	/* CLOCK_MONOTONIC. */
	u64 time;
};

/* What is traced of each call (-t). */
enum call_trace {
	CALL_TRACE_OFF = 0,
	/* What became of them. */
	CALL_TRACE_ENDS = 1,
	/* That they begin, too. */
	CALL_TRACE_ALL = 2,
};

enum call_event_kind {
	/* A function that allocates was called, and what it gives is to be recorded. */
	CALL_BEGINS = 0,
	/* It has given a block. */
	BLOCK_ALLOCATED = 1,
	/* It has failed. */
	CALL_FAILED = 2,
	/* A block was freed, or resized. */
	BLOCK_FREED = 3,
	/* The same of one that is not known. */
	UNKNOWN_FREED = 4,
};

struct call_event {
	/* CLOCK_MONOTONIC. */
	u64 time;
	/* The block's; 0 if there is none. */
	u64 address;
	/* 0 for a block that is not known. */
	u64 size;
	/* enum call_event_kind. */
	u32 kind;
	u32 instance;
	/* Ids in the initial pid namespace. */
	u32 process;
	u32 thread;
	/* Index of the stack record: of what was allocated, or of what allocated what is freed. */
	u32 stack;
	u32 cpu;
	char comm[16];
};

_Static_assert(sizeof(struct call_event) == 64, "user space reads it as eight words");
_Static_assert(sizeof(struct mapping) == 64, "a mapping is one cache line");
_Static_assert(sizeof(struct process) == 64, "user space reads it as eight words");
_Static_assert(sizeof(struct instance) == 40, "user space reads it as five words");
_Static_assert(sizeof(struct region_event) == 72, "user space reads it as nine words");
_Static_assert(sizeof(struct young_block) == 64, "a place is one cache line");
_Static_assert(sizeof(struct stack_record) == 64, "a stack record is one cache line");
_Static_assert(sizeof(struct stack_totals) == 64, "a stack's totals are one cache line");
_Static_assert(sizeof(struct stack_variance) == 64, "a stack's variance is one cache line");
