/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Read-only settings, written by user space before the programs are loaded: to the verifier they are
 * constants. Masks are a power of two minus one.
 */
#ifndef CONFIG_H
#define CONFIG_H

#include "kernel.h"
#include "shared.h"

/* Walk frame pointers only (--unwind fp). */
const volatile bool unwind_by_fp = false;
/* Do not walk at all: every stack is "not walked". For benchmarks. */
const volatile bool unwind_off = false;
/* Let the kernel walk by frame pointers (bpf_get_stackid); stacks are not told apart. For benchmarks. */
const volatile bool unwind_by_kernel = false;
/* What only makes walks faster; false for benchmarks and tests. */
const volatile bool walk_cache = true;
const volatile bool walk_window = true;
const volatile bool walk_memo = true;
/* Do each walk again without these, and compare. For tests. */
const volatile bool check_walks = false;
/* Trace the children of traced processes too (--follow-fork). */
const volatile bool follow_fork = false;
/* Sizes that are recorded, both ends included (-z, -Z). */
const volatile bool filter_sizes = false;
const volatile u64 min_size = 0;
const volatile u64 max_size = ~0ULL;
/* Which calls of those are recorded; enum sampling. */
const volatile u32 sampling = SAMPLE_ALL;
/* Calls, or the mean number of bytes, of which one is chosen. */
const volatile u64 sampling_interval = 1;
/* With SAMPLE_BYTES: the mean number is what user space last set, see struct distance (--max-overhead). */
const volatile bool governed = false;
/* Which calls are traced one by one (-t); enum call_trace. */
const volatile u32 call_trace = CALL_TRACE_OFF;
/* The process, in the initial pid namespace, whose calls are not traced: what writes down the kernel's allocations makes
 * some. ~0: none. */
const volatile u32 call_trace_except = ~0U;
/* Process slots in use, slot 0 included. */
const volatile u32 slot_count = 1;
/* Words of the table store. */
const volatile u32 table_mask = 63;
/* Entries of one mapping list, as a power of two. */
const volatile u32 mapping_bits = 0;
/* Entries of all mapping lists. */
const volatile u32 mapping_mask = 0;
/* Entries of all rule caches. */
const volatile u32 cache_mask = 0;
/* Places for young blocks; 0 where none are kept apart. */
const volatile u32 young_mask = 0;
/* Memos. */
const volatile u32 memo_mask = 0;
/* Stack records, those of FIRST_STACK included. */
const volatile u32 stack_capacity = 0;
/* Records are reached through this mask; at least stack_capacity - 1. */
const volatile u32 stack_mask = 0;
/* Variances are reached through this mask: as stack_mask, or 0 when there are none. */
const volatile u32 variance_mask = 0;
/* Frames in the frame store. */
const volatile u32 frame_capacity = 0;
/* Frames are reached through this mask; MAX_FRAMES more are allocated behind it. */
const volatile u32 frame_mask = 0;
/* The pid namespace in which user space names processes; 0 for the initial one. */
const volatile u32 pid_namespace = 0;

#endif
