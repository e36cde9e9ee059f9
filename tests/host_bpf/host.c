/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk of bpf/walk/unwind.h compiled for the host: its helpers are plain functions here, its maps plain
 * memory. tests/host/walk/mod.rs loads this as a shared object.
 */
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

/* What is given here in place of theirs. */
#define KERNEL_H
#define CONFIG_H
#define MAPS_H
#define RETURN_PROBES_H

#include "shared.h"

/* Reads `bytes` bytes of the recorded memory; not 0 for a fault. */
typedef long (*read_memory)(void *context, void *to, u64 bytes, u64 from);

static read_memory read_from;
static void *read_context;

static long bpf_probe_read_user(void *to, u32 bytes, const void *from)
{
	return read_from(read_context, to, bytes, (u64)from);
}

static long bpf_loop(u32 count, void *callback, void *context, u64 flags)
{
	long (*step)(u64, void *) = callback;
	u32 number = 0;

	(void)flags;
	while (number < count && !step(number, context))
		number++;
	return number;
}

static bool unwind_by_fp, walk_cache, walk_window, walk_memo;
static const bool check_walks = false;
static u32 table_mask, mapping_bits, mapping_mask, cache_mask;
static u32 *tables;
static struct mapping *mappings;
static u64 *rule_cache;

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

#include "fast/run.h"

/* Sizes are powers of two; `mapping_count` is that of one list, the cache has 2^CACHE_BITS slots. */
struct host_tables {
	u32 *words;
	struct mapping *mappings;
	u64 *cache;
	u32 word_count;
	u32 mapping_count;
	u32 by_fp;
	u32 changing;
	/* Whether the walk takes fast paths. */
	u32 short_ways;
	u64 stack_end;
	u64 trampoline;
	const u64 (*replaced)[2];
	u32 replaced_count;
};

struct host_stack {
	u64 end_pc;
	u64 saves_wanted;
	u64 frames[MAX_FRAMES];
	u32 frame_count;
	u32 end;
	/* What the walk depended on, if that can be said: offsets from the stack pointer that it began with. */
	u32 repeatable;
	u32 slot_count;
	u16 slot_at[TRAIL_SLOTS];
	u64 slot_value[TRAIL_SLOTS];
};

static void walk_once(struct fast_walk *fast, const struct host_tables *given, u64 pc, bool leaves_trail)
{
	forget_window(fast);
	begin_fast_walk(fast, list_number(0, 0), given->changing, pc);
	fast->leaves_trail = leaves_trail;
	fast->stack_end = given->stack_end;
	walk_stack(fast);
}

/* `start` is the program counter, then the general registers by their DWARF numbers. */
void host_walk(const struct host_tables *given, read_memory read, void *context, const u64 *start,
	       struct host_stack *stack)
{
	static struct fast_walk fast;
	struct walk *walk = &fast.walk;

	read_from = read;
	read_context = context;
	unwind_by_fp = given->by_fp;
	walk_cache = walk_window = given->short_ways;
	walk_memo = true;
	tables = given->words;
	mappings = given->mappings;
	rule_cache = given->cache;
	trampoline = given->trampoline;
	replaced = given->replaced;
	replaced_count = given->replaced_count;
	table_mask = given->word_count - 1;
	mapping_bits = __builtin_ctz(given->mapping_count);
	mapping_mask = given->mapping_count - 1;
	cache_mask = (1 << CACHE_BITS) - 1;

	for (u32 number = 0; number < REGISTERS; number++)
		walk->at_probe[number] = start[1 + number];
	walk_once(&fast, given, start[0], false);

	u64 hash = walk->hash, pc = walk->pc;
	enum end_cause end = walk->end;

	walk_once(&fast, given, start[0], true);
	/* That a trail is left changes nothing. */
	if (walk->hash != hash || walk->pc != pc || walk->end != end)
		__builtin_trap();
	stack->end_pc = walk->pc;
	stack->saves_wanted = walk->saves_wanted;
	stack->end = walk->end;
	stack->frame_count = walk->frame_count;
	for (u32 number = 0; number < walk->frame_count; number++)
		stack->frames[number] = walk->frames[number];
	stack->repeatable = is_repeatable(&fast);
	stack->slot_count = stack->repeatable ? fast.trail.slot_count : 0;
	for (u32 number = 0; number < stack->slot_count; number++) {
		stack->slot_at[number] = fast.trail.slot_at[number];
		stack->slot_value[number] = fast.trail.slot_value[number];
	}
}
