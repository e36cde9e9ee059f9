/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Pairs of programs for one event. The kernel does not run a program that is already running on the same CPU, as when
 * an event occurs in an interrupt meanwhile, or in another task, where programs can be preempted. So the first program
 * of a pair marks the CPU while it runs; the second does its work only if it finds that mark, which means that the
 * kernel skipped the first. The kernel counts the events that the first program misses; counter `seen` counts those of
 * them that the second one recorded.
 *
 * A task that is preempted between the two programs can miss the mark, or find that of another task's event. That takes
 * two such moments at once, each of some nanoseconds.
 */
#pragma once

#include "counters.h"
#include "kernel.h"

enum {
	/* Maximum number of pairs of one object. */
	RUNNING_MARKS = 16,
};

/* Not 0 while the first program of a pair runs on this CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, u32);
	__type(value, u32);
	__uint(max_entries, RUNNING_MARKS);
} running SEC(".maps");

static __always_inline u32 *running_mark(u32 pair)
{
	return bpf_map_lookup_elem(&running, &pair);
}

static __always_inline void mark_running(u32 pair, u32 value)
{
	u32 *mark = running_mark(pair);

	if (mark)
		*(volatile u32 *)mark = value;
}

static __always_inline bool is_running(u32 pair)
{
	u32 *mark = running_mark(pair);

	return mark && *(volatile u32 *)mark;
}

/* The two programs of a pair. */
#define PAIR_OF_PROGRAMS(section, name, pair, seen, record)                                                            \
	SEC(section) int name(u64 *ctx)                                                                               \
	{                                                                                                              \
		mark_running(pair, 1);                                                                                 \
		record;                                                                                                \
		mark_running(pair, 0);                                                                                 \
		return 0;                                                                                              \
	}                                                                                                              \
	SEC(section) int name##_nested(u64 *ctx)                                                                      \
	{                                                                                                              \
		if (!is_running(pair))                                                                                 \
			return 0;                                                                                      \
		count(seen);                                                                                           \
		record;                                                                                                \
		return 0;                                                                                              \
	}
