/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Read-only settings of the recording, in every object. User space writes them before the programs are loaded: to the
 * verifier they are constants. Masks are a power of two minus one.
 */
#ifndef STORE_CONFIG_H
#define STORE_CONFIG_H

#include "kernel.h"
#include "shared.h"

/* Requested sizes to record, in bytes, both ends included (-z, -Z). */
const volatile bool filter_sizes = false;
const volatile u64 min_size = 0;
const volatile u64 max_size = ~0ULL;
/* How calls to record are chosen among those of a recorded size; enum sampling. */
const volatile u32 sampling = SAMPLE_ALL;
/* Sampling interval: calls (SAMPLE_CALLS), or the mean number of bytes (SAMPLE_BYTES), of which one is chosen. */
const volatile u64 sampling_interval = 1;
/* With SAMPLE_BYTES: take the interval from struct distance, which user space updates (--max-overhead). */
const volatile bool governed = false;
/* Calls to trace one by one (-t); enum call_trace. */
const volatile u32 call_trace = CALL_TRACE_OFF;
/*
 * Process id (tgid), in the initial pid namespace, whose calls are not traced: memleak's own in kernel mode, where
 * printing allocations makes some. ~0: none.
 */
const volatile u32 call_trace_except = ~0U;
/* Mask of places for young blocks; 0 if all blocks go to the block table. */
const volatile u32 young_mask = 0;
/* Number of stack records, including those below FIRST_STACK. */
const volatile u32 stack_capacity = 0;
/* Mask of indexes of stack records; at least stack_capacity - 1. */
const volatile u32 stack_mask = 0;
/* Mask of indexes of variances: stack_mask, or 0 if no variances are kept. */
const volatile u32 variance_mask = 0;
/* Number of frames in the frame store. */
const volatile u32 frame_capacity = 0;
/* Mask of indexes of frames; MAX_FRAMES more are allocated past its range. */
const volatile u32 frame_mask = 0;

#endif
