/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * All maps except those of kernel mode (kernel_memory.h): key, value, writers, readers, and the reason for the size.
 * Arrays in sections of their own are maps too: user space sets their size before loading and maps them into its memory.
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

/* Two lists of executable mappings per process slot; only the inactive one is rewritten. Unused entries start above every
 * user address. Written by user space; read by walks. Size: from the target's mappings. */
SEC(".bss.mappings") struct mapping mappings[1];

/* Two caches of 2^CACHE_BITS rules per process slot, one per mapping list. An entry is a rule of 31 bits, a bit that is set
 * if its mapping must be verified, and a tag that makes hits exact. Written by walks; cleared by user space. */
SEC(".bss.cache") u64 rule_cache[1];

/* Walk memos, by the registers at the start of the walk; see fast/memo.h. Written and read by walks. Size: a constant of
 * user space; a walk overwrites an older one in the same place. */
SEC(".bss.memos") struct memo memos[1];

/* The module whose allocator is probed, if it is only one. Written by user space before it attaches; read by probes. */
SEC(".bss.probed") struct probed {
	/* Number of the only module, plus 1; 0 while no module is probed, ~0 if several are. */
	u64 module;
} probed;

/* Traced processes, by slot. Lifecycle probes write it when instances begin and end, walks and the loader hook to request a
 * reload of mappings, user space when it publishes mapping lists and frees slots. */
SEC(".bss.processes") struct process processes[MAX_PROCESSES];

/* Instances, by number. Written when one begins and ends; read by user space. */
SEC(".bss.instances") struct instance instances[MAX_INSTANCES];

/* Number of the next instance: incremented atomically by both sides. */
SEC(".bss.numbers") struct numbers {
	u64 next_instance;
} numbers;

/* Stack records, by index. Written by probes; read by user space in place.
 * Size: --stack-storage-size; beyond it, blocks are counted at the function's "not stored" record. */
SEC(".bss.stacks") struct stack_record stacks[1];

/* Allocated and freed amounts, by index of the stack record. Written by probes; read by user space in place. */
SEC(".bss.totals") struct stack_totals totals[1];

/* Variances of totals, by index of the stack record. Written by probes; read by user space in place. Size: as `stacks` if
 * blocks are sampled, else one entry. */
SEC(".bss.variance") struct stack_variance variances[1];

/* The sampling interval if the governor adapts it (--max-overhead). Written by user space; read by probes. */
SEC(".bss.distance") struct distance distance;

/* Frames of all stacks. Written by probes; read by user space in place. Size: 64 frames per stack. */
SEC(".bss.frames") u64 frames[1];

/* Numbers of stack records and frames reserved; can exceed the capacities. Written by probes; read by user space. */
SEC(".bss.usage") struct usage {
	u64 stacks;
	u64 frames;
} usage;

/* Process id (tgid) to owner, see process/processes.h. Written when instances begin and end; read by probes.
 * Size: MAX_PROCESSES, plus MAX_SHARERS that share a traced process's memory until they exec. */
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

/* The block table: outstanding blocks that have left their young place. Written and read by probes; read by user space.
 * Not preallocated. Size: --max-blocks minus the young places; beyond it, new blocks are counted as lost. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block_key);
	__type(value, struct block);
	__uint(max_entries, 1);
} blocks SEC(".maps");

/* Young blocks, each in the place that its key selects; see store/young.h. Written and read by probes; read by user space
 * in place. Size: a share of --max-blocks; one unused place if few blocks are recorded. */
SEC(".bss.young") struct young_block young[1];

/* Counts of blocks in the table, by hash of the key; see alike_blocks in store/block_table.h. Written and read by probes.
 * Size: large enough that most counts are 0 with some thousand sampled blocks. */
SEC(".bss.alike") u32 alike[ALIKE_COUNTS];

/* State of each thread: its allocator call, sampler and habits. Written and read by probes; freed with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* Scratches: SCRATCH_PER_CPU for each possible CPU, since walks are preemptible. Used by probes only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct scratch);
	__uint(max_entries, 1);
} scratches SEC(".maps");

/* Stacks that the kernel's own frame-pointer walk stores. Created for benchmarks only. */
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

/* Events that user space must act on. Few and small: only the first walk that lacks something sends one, and only the
 * first change of the mappings since the last published list; so does the begin and end of an instance. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

/* Mapping calls of traced processes, in order. Written by probes; read by user space several times a second, and
 * when a quarter is full. Size: 8 MiB with --mmap, a page without; beyond it, calls are counted as lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} region_events SEC(".maps");

/* The call trace (-t): calls, one by one. Written by probes; read by user space many times a second. Beyond its size, calls
 * are counted as lost (COUNTER_LOST_CALL_EVENT). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} call_events SEC(".maps");

/*
 * A map whose content is not used. The kernel guarantees that an update of a map of maps returns only after every program
 * that was running has ended; user space updates this one to wait until no walk uses the mapping list that was replaced.
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
