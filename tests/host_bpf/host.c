/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The walk of bpf/fast/ compiled for the host. crates/test/src/compile.rs loads this as a shared object. */
#include "host.h"

static bool walk_cache, walk_window, walk_memo;
static const bool check_walks = false;
static u32 cache_mask;
static u64 *rule_cache;

#include "fast/run.h"

_Static_assert(TRAIL_SLOTS == HOST_TRAIL_SLOTS, "who calls this has room for a trail");

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

	give(given, read, context);
	walk_cache = walk_window = given->fast_paths;
	walk_memo = true;
	rule_cache = given->cache;
	cache_mask = (1 << CACHE_BITS) - 1;

	for (u32 number = 0; number < REGISTERS; number++)
		walk->at_probe[number] = start[1 + number];
	walk_once(&fast, given, start[0], false);

	u64 hash = walk->hash, pc = walk->pc;
	enum end_cause end = walk->end;

	walk_once(&fast, given, start[0], true);
	/* Recording a trail must change nothing. */
	if (walk->hash != hash || walk->pc != pc || walk->end != end)
		__builtin_trap();
	stack->end_pc = walk->pc;
	stack->saves_wanted = walk->saves_wanted;
	stack->hash = walk->hash;
	stack->end = walk->end;
	stack->frame_count = walk->frame_count;
	for (u32 place = 0; place < walk->frame_count && place < MAX_FRAMES; place++)
		stack->frames[place] = walk->frames[place];
	stack->repeatable = is_repeatable(&fast);
	stack->slot_count = stack->repeatable ? fast.trail.slot_count : 0;
	for (u32 number = 0; number < stack->slot_count; number++) {
		stack->slot_at[number] = fast.trail.slot_at[number];
		stack->slot_value[number] = fast.trail.slot_value[number];
	}
}
