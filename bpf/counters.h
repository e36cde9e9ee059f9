/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Event counters. Programs are preemptible, so even a per-CPU counter needs an atomic add. */
#ifndef COUNTERS_H
#define COUNTERS_H

#include "kernel.h"
#include "shared.h"
#include "store/store_maps.h"

static __always_inline void count_by(enum counter counter, u64 amount)
{
	u32 key = counter;
	u64 *value = bpf_map_lookup_elem(&counters, &key);

	if (value)
		__sync_fetch_and_add(value, amount);
}

static __always_inline void count(enum counter counter)
{
	count_by(counter, 1);
}

#endif
