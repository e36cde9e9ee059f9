/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Maps of recorded data, in every object: key, value, writers, readers, and the reason for the size. Maps for tracing
 * processes are in maps.h, those of kernel mode in kernel_memory.h.
 *
 * Arrays in sections of their own are maps too: user space sets their size before loading and maps them into its
 * memory.
 */
#ifndef STORE_MAPS_H
#define STORE_MAPS_H

#include "kernel.h"
#include "shared.h"
#include "store/scratch.h"

/* Stack records, by index. Written by probes; read by user space in place.
 * Size: --stack-storage-size; beyond it, blocks are counted at the function's "not stored" record. */
SEC(".bss.stacks") struct stack_record stacks[1];

/* Allocated and freed amounts, by index of the stack record. Written by probes; read by user space in place. */
SEC(".bss.totals") struct stack_totals totals[1];

/*
 * Variances of totals, by index of the stack record. Written by probes; read by user space in place. Size: as `stacks`
 * if blocks are sampled, else one entry.
 */
SEC(".bss.variance") struct stack_variance variances[1];

/* The sampling interval if the governor adapts it (--max-overhead). Written by user space; read by probes. */
SEC(".bss.distance") struct distance distance;

/* Frames of all stacks. Written by probes; read by user space in place. Size: 64 frames per stack. */
SEC(".bss.frames") u64 frames[1];

/*
 * Numbers of stack records and frames reserved, and of stand-ins taken for the first time (bpf/calls/deferral.h); can
 * exceed the capacities. Written by probes; read by user space.
 */
SEC(".bss.usage") struct usage {
	u64 stacks;
	u64 frames;
	u64 stand_ins;
} usage;

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

/*
 * Young blocks, each in the place that its key selects; see store/young.h. Written and read by probes; read by user
 * space in place. Size: a share of --max-blocks; one unused place if few blocks are recorded.
 */
SEC(".bss.young") struct young_block young[1];

/*
 * Counts of blocks in the table, by hash of the key; see alike_blocks in store/block_table.h. Written and read by
 * probes. Size: large enough that most counts are 0 with some thousand sampled blocks.
 */
SEC(".bss.alike") u32 alike[ALIKE_COUNTS];

/* Scratches: SCRATCH_PER_CPU for each possible CPU, since walks are preemptible. Used by probes only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct scratch);
	__uint(max_entries, 1);
} scratches SEC(".maps");

/* Counts of events, one slot per `enum counter`. Written by probes; summed by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, u32);
	__type(value, u64);
	__uint(max_entries, COUNTERS);
} counters SEC(".maps");

/*
 * The call trace (-t): calls, one by one. Written by probes; read by user space many times a second. Beyond its size,
 * calls are counted as lost (COUNTER_LOST_CALL_EVENT).
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} call_events SEC(".maps");

#endif
