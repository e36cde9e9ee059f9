/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every map but those of kernel mode alone (kernel_memory.h): key, value, who writes, who reads, and why it has its
 * size. Arrays in sections of their own are maps too: user space sets their size before loading and maps them into its
 * memory.
 */
#ifndef MAPS_H
#define MAPS_H

#include "calls/thread.h"
#include "fast/trail.h"
#include "kernel.h"
#include "shared.h"
#include "store/scratch.h"

/* All table images, one after the other. Written by user space; read by walks. Size: --table-memory. */
SEC(".bss.tables") u32 tables[64];

/* Two lists of executable mappings per process, the inactive one being rewritten. Unused entries start
 * beyond every address. Written by user space; read by walks. Size: from the target's mappings. */
SEC(".bss.mappings") struct mapping mappings[1];

/* Two caches of 2^CACHE_BITS rules per process, one per mapping list. An entry is a rule of 31
 * bits, whether its mapping must be verified, and the tag that makes the hit exact. Written by walks; cleared by user space. */
SEC(".bss.cache") u64 rule_cache[1];

/* What walks found, by the registers that they began with; see fast/memo.h. Written and read by walks. Size: a constant of
 * user space; where two walks want the same one, the later has it. */
SEC(".bss.memos") struct memo memos[1];

/* Whether allocators of several modules are probed. Written by user space, before it attaches; read by probes. */
SEC(".bss.probed") struct probed {
	/* One above the number of the only module; 0 while there is none, ~0 if there are several. */
	u64 module;
} probed;

/* The processes traced, by slot. Instances begin and end here; walks and the loader's probe ask for attention;
 * user space publishes mapping lists and frees slots. */
SEC(".bss.processes") struct process processes[MAX_PROCESSES];

/* What is known of each instance, by its number. Written when it begins and ends; read by user space. */
SEC(".bss.instances") struct instance instances[MAX_INSTANCES];

/* The next instance's number. Taken by both sides, hence a word of its own. */
SEC(".bss.numbers") struct numbers {
	u64 next_instance;
} numbers;

/* Stacks, by index. Written by probes; read by user space in place.
 * Size: --stack-storage-size; beyond it, blocks are charged to the "not stored" record. */
SEC(".bss.stacks") struct stack_record stacks[1];

/* What was allocated from each stack, by the same index. Written by probes; read by user space in place. */
SEC(".bss.totals") struct stack_totals totals[1];

/* How far totals can be off, by the same index. Written by probes; read by user space in place. Size: as `stacks` when
 * blocks are sampled, else one entry. */
SEC(".bss.variance") struct stack_variance variances[1];

/* How far apart chosen bytes are, where that changes while the trace goes on. Written by user space; read by probes. */
SEC(".bss.distance") struct distance distance;

/* Frames of all stacks. Written by probes; read by user space in place. Size: 64 frames per stack. */
SEC(".bss.frames") u64 frames[1];

/* How many stack records and frames are in use. Written by probes; read by user space. */
SEC(".bss.usage") struct usage {
	u64 stacks;
	u64 frames;
} usage;

/* Process id (tgid) to owner, see process/processes.h. Written when instances begin and end; read by probes.
 * Size: a process for each slot, and those that share a process's memory until they exec. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, u32);
	__type(value, u64);
	__uint(max_entries, MAX_PROCESSES + MAX_SHARERS);
} owners SEC(".maps");

/* Stack id to index in `stacks`. Written and read by probes. Size: as `stacks`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, u64);
	__type(value, u32);
	__uint(max_entries, 1);
} stack_ids SEC(".maps");

/* Blocks that were allocated, not freed, and are not among the young. Written and read by probes; read by user space.
 * Memory is taken as blocks come. Size: --max-blocks less the young; beyond it, new blocks are counted as lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block_key);
	__type(value, struct block);
	__uint(max_entries, 1);
} blocks SEC(".maps");

/* Blocks that were allocated lately, each in the place of its key; see store/young.h. Written and read by probes; read by
 * user space in place. Size: a share of --max-blocks; one place that is not used where few blocks are recorded. */
SEC(".bss.young") struct young_block young[1];

/* See store/block_table.h. Written and read by probes. Size: so that few are not 0 beside some thousand sampled blocks. */
SEC(".bss.alike") u32 alike[ALIKE_COUNTS];

/* The allocator call that a thread is in. Written and read by probes; freed with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* Room for walks: SCRATCH_PER_CPU per possible CPU, since walks are preemptible. Used by probes only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct scratch);
	__uint(max_entries, 1);
} scratches SEC(".maps");

/* Stacks as the kernel's own frame-pointer walk stores them. For benchmarks: not there otherwise. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, KERNEL_STACK_FRAMES * sizeof(u64));
	__uint(max_entries, 1);
} kernel_stacks SEC(".maps");

/* Counts of events, one slot per `enum counter`. Written by probes; summed by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, u32);
	__type(value, u64);
	__uint(max_entries, COUNTERS);
} counters SEC(".maps");

/* What user space must act on. Few and small: the first walk that lacks something asks for it, as does the first change
 * of the mappings that user space does not know of; instances begin and end. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

/* Mapping calls of traced processes, in their order. Written by probes; read by user space several times a second,
 * and when it fills. Size: 8 MiB with --mmap, a page without; beyond it, calls are counted as lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} region_events SEC(".maps");

/* Calls, one by one. Written by probes; read by user space many times a second. Only with -t. Size: beyond it, calls are
 * counted as not told. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} call_events SEC(".maps");

/*
 * Holds nothing of use. The kernel promises that an update of a map of maps returns only after every
 * program that was running has ended; user space updates this one to know that no walk still uses the
 * mapping list that was replaced.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, u32);
	__uint(max_entries, 1);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__type(key, u32);
			__type(value, u32);
			__uint(max_entries, 1);
		});
} grace SEC(".maps");

#endif
