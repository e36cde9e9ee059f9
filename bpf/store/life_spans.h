/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How long freed blocks have lived, by stack record: counts of blocks, by class of their age. The first class is of
 * temporary blocks: not old, and freed by their thread before it allocated another.
 *
 * Not counted are blocks whose free was missed, or may have been, and those of instances that have ended.
 */
#pragma once

#include "calls/sampling.h"
#include "calls/threads.h"
#include "config.h"
#include "kernel.h"
#include "maps.h"

/* Returns 1 if `age` is at least `bound`, both in nanoseconds, else 0. */
static __always_inline u64 is_at_least(s64 age, s64 bound)
{
	u64 below = age - bound;

	/* Keeps the compiler from making it a branch. */
	OPAQUE(below);
	return below >> 63 ^ 1;
}

/*
 * Returns the class of an age, by the bounds of `AGE_BOUNDS` in leak-report. A block's time can be later than that of
 * its free.
 */
static __always_inline u64 life_span_of(s64 age, bool is_newest)
{
	const s64 second = 1000000000;
	u64 is_old = is_at_least(age, second / 10);
	u64 class = 1;

	/*
	 * The sum is formed in a register that holds nothing of `age`: the verifier of Linux 7.0 believes that bits
	 * which were shifted out of a difference are still in it.
	 */
	OPAQUE(class);
	class += is_old - (is_newest & !is_old);
	class += is_at_least(age, second);
	class += is_at_least(age, 10 * second);
	class += is_at_least(age, 60 * second);
	class += is_at_least(age, 600 * second);
	class += is_at_least(age, 3600 * second);
	return class;
}

/*
 * Counts a block that is freed. `thread`: the state of the thread that frees it, or NULL; `is_newest`: it is the block
 * that this thread allocated last.
 */
static __always_inline void count_life_span(struct block *block, struct thread *thread, bool is_newest)
{
	u64 now = thread ? time_of(thread) : bpf_ktime_get_ns();
	u64 class = life_span_of(now - block->allocated_at, is_newest);
	u32 stack = block->stack;
	struct life_spans *spans = bpf_map_lookup_elem(&life_spans, &stack);

	OPAQUE(class);
	if (spans)
		__sync_fetch_and_add(&spans->blocks[class & (LIFE_SPANS - 1)],
				     sampling == SAMPLE_ALL ? 1 : load_weight(block->weight));
}
