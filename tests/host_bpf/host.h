/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Environment of the walk of bpf/ on the host: its helpers are plain functions here, its maps plain memory. host.c and
 * plain.c include this, and export the same function.
 */
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

/* Headers of bpf/ that are replaced by this file. */
#define KERNEL_H
#define CONFIG_H
#define MAPS_H
#define STORE_CONFIG_H
#define STORE_MAPS_H
#define RETURN_PROBES_H

#define __noinline

#include "shared.h"

/* Reads `bytes` bytes of the recorded memory; not 0 for a fault. */
typedef long (*read_memory)(void *context, void *to, u64 bytes, u64 from);

static read_memory read_from;
static void *read_context;

static long bpf_probe_read_user(void *to, u32 bytes, const void *from)
{
	return read_from(read_context, to, bytes, (u64)from);
}

static bool unwind_by_fp;
static u32 table_mask, mapping_bits, mapping_mask;
static u32 *tables;
static struct mapping *mappings;

/* The trampoline; slots, and the return addresses that were in them. */
static u64 trampoline;
static const u64 (*replaced)[2];
static u32 replaced_count;

static bool is_trampoline(u64 address)
{
	return address && address == trampoline;
}

static u64 replaced_return_address(u64 slot)
{
	for (u32 number = 0; number < replaced_count; number++)
		if (replaced[number][0] == slot)
			return replaced[number][1];
	return 0;
}

/* Sizes are powers of two; `mapping_count` is that of one list, the cache has 2^CACHE_BITS slots. */
struct host_tables {
	u32 *words;
	struct mapping *mappings;
	u64 *cache;
	u32 word_count;
	u32 mapping_count;
	u32 by_fp;
	u32 changing;
	/* Not 0 if the walk takes fast paths. */
	u32 fast_paths;
	u64 stack_end;
	u64 trampoline;
	const u64 (*replaced)[2];
	u32 replaced_count;
};

/* Slots of the longest trail. */
#define HOST_TRAIL_SLOTS 128

struct host_stack {
	u64 end_pc;
	u64 saves_wanted;
	/* Identity of the frames; 0 of the walk without fast paths. */
	u64 hash;
	/* By place, as the walk stores them. */
	u64 frames[MAX_FRAMES];
	u32 frame_count;
	u32 end;
	/*
	 * Not 0 if the trail is complete; then its slots follow, as offsets from the stack pointer at the start of the
	 * walk.
	 */
	u32 repeatable;
	u32 slot_count;
	u16 slot_at[HOST_TRAIL_SLOTS];
	u64 slot_value[HOST_TRAIL_SLOTS];
};

/* Sets what the walk reads beside its own state. */
static void give(const struct host_tables *given, read_memory read, void *context)
{
	read_from = read;
	read_context = context;
	unwind_by_fp = given->by_fp;
	tables = given->words;
	mappings = given->mappings;
	trampoline = given->trampoline;
	replaced = given->replaced;
	replaced_count = given->replaced_count;
	table_mask = given->word_count - 1;
	mapping_bits = __builtin_ctz(given->mapping_count);
	mapping_mask = given->mapping_count - 1;
}
