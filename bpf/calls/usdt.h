/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Blocks that a process samples itself and announces by USDT probes: `otel_memory:alloc(pointer, size, weighted_bytes)`
 * once a block is allocated, `otel_memory:free(pointer)` before it is freed, OpenTelemetry's contract for memory
 * profiling.
 *
 * A hit has everything that is needed of a block: no call has to be followed to its end, and there are no nested calls.
 */
#pragma once

#include "calls/calls.h"
#include "calls/current_stack.h"
#include "calls/thread.h"
#include "counters.h"
#include "kernel.h"
#include "maps.h"
#include "store/blocks.h"
#include "store/life_spans.h"

/* Reads memory of the process; `bytes` is 1, 2, 4 or 8. Returns 0 if it cannot be read. */
static __always_inline u64 read_user(u64 address, u8 bytes)
{
	u64 value = 0;
	long error;

	switch (bytes) {
	case 1:
		error = bpf_probe_read_user(&value, 1, (void *)address);
		break;
	case 2:
		error = bpf_probe_read_user(&value, 2, (void *)address);
		break;
	case 4:
		error = bpf_probe_read_user(&value, 4, (void *)address);
		break;
	default:
		error = bpf_probe_read_user(&value, 8, (void *)address);
	}
	return error ? 0 : value;
}

/* Reads a register at the probe; user space has checked that `at` is the offset of one in `struct pt_regs`. */
static __always_inline u64 register_at(struct pt_regs *ctx, u16 at)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)ctx + at);
	return value;
}

/* Returns argument `number`, 0-based, of the USDT probe that `site` describes. */
static __always_inline u64 usdt_argument(struct pt_regs *ctx, u32 site, u32 number)
{
	struct usdt_argument *argument = &usdt_sites[site & (MAX_USDT_SITES - 1)].arguments[number];
	u64 value = argument->value;
	u32 unused_bits = (64 - 8 * argument->bytes) & 63;

	if (argument->kind != USDT_CONSTANT)
		value += register_at(ctx, argument->register_at);
	if (argument->kind == USDT_MEMORY) {
		if (argument->index_at)
			value += register_at(ctx, argument->index_at - 1) << (argument->scale & 3);
		value = read_user(value, argument->bytes);
	}
	value <<= unused_bits;
	return argument->is_signed ? (u64)((s64)value >> unused_bits) : value >> unused_bits;
}

/* Returns the stored weight of a block of `size` bytes that stands for `weighted` bytes; at least 1. */
static __always_inline u32 weight_by_provider(u64 size, u64 weighted)
{
	u64 weight = (weighted << WEIGHT_SHIFT) / (size + !size);

	return weight > 1ULL << WEIGHT_SHIFT ? store_weight(weight) : WEIGHT_ONE;
}

/*
 * Returns whether the blocks that a probe announces are recorded: while the distance changes, probes of two distances
 * are attached, which both announce some blocks.
 */
static __always_inline bool is_of_distance(u64 cookie)
{
	u32 logarithm = cookie >> COOKIE_DISTANCE & 31;

	return !governed || !logarithm || *(volatile u64 *)&distance.mean == 1ULL << logarithm;
}

/* Handles a hit of `otel_memory:alloc`. */
static __always_inline void usdt_allocated(struct pt_regs *ctx, u64 cookie)
{
	u32 site = cookie >> COOKIE_MODULE;
	u32 function = (cookie >> COOKIE_FUNCTION) & (MAX_FUNCTIONS - 1);
	u64 address = usdt_argument(ctx, site, 0), size = usdt_argument(ctx, site, 1);
	struct thread *thread = known_thread();
	u64 owner = current_owner(thread);
	struct block block = { .size = size };

	if (!owner || !address)
		return;
	count(COUNTER_PROBE_HITS);
	if (!is_of_distance(cookie))
		return;
	block.weight = weight_by_provider(size, usdt_argument(ctx, site, 2));
	thread = owned_thread(thread, owner);
	if (!thread) {
		lose_call(COUNTER_LOST_THREAD_STATE, size, block.weight, function);
		return;
	}
	if (is_left_out(size))
		return;

	/* Behind the probe's address, as if it were a call: the walk looks up the byte before. */
	struct caller caller = { .pc = program_counter(ctx) + 1, .sp = ctx->sp, .link = link_of(ctx) };

	block.stack = current_stack(ctx, &thread->habits, caller, owner, function);
	block.allocated_at = time_of(thread);
	record_block(instance_of(owner), address, &block, &thread->lifetimes);
}

/* Handles a hit of `otel_memory:free`. Blocks announced before the attach, or only to other tracers, are unknown. */
static __always_inline void usdt_freed(struct pt_regs *ctx, u64 cookie)
{
	u64 address = usdt_argument(ctx, cookie >> COOKIE_MODULE, 0);
	struct thread *thread = known_thread();
	u64 owner = current_owner(thread);
	struct block block;

	if (!owner || !address)
		return;
	if (!free_block(instance_of(owner), address, &block, thread ? &thread->lifetimes : NULL)) {
		count(COUNTER_UNKNOWN_FREE);
		return;
	}
	/* Only some allocations are announced: there may have been another one since. */
	count_life_span(&block, thread, false);
}
