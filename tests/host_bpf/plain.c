/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The walk of bpf/walk/ alone, compiled for the host: without a window, a cache or a trail. crates/test/src/compile.rs
 * loads this as a shared object.
 */
#include "host.h"
#include "walk/unwind.h"

struct fast_walk {
	struct walk walk;
};

static __always_inline bool read_slot(struct walk *walk, u64 slot, u64 *value)
{
	return bpf_probe_read_user(value, 8, (void *)slot) == 0;
}

static __always_inline bool read_fp_slot(struct walk *walk, u64 slot, u64 *value)
{
	return read_slot(walk, slot, value);
}

static __always_inline bool peek_slot(struct walk *walk, u64 slot, u64 *value)
{
	return read_slot(walk, slot, value);
}

static __always_inline void depend_on_fp(struct walk *walk)
{
}

static __always_inline void depend_on_checks(struct walk *walk, struct mapping *mapping)
{
}

static __always_inline void depend_on_more(struct walk *walk)
{
}

/* Takes steps until the walk ends; two for each frame, as in fast/run.h. */
static void step_until_end(struct walk *walk)
{
	for (u32 number = 0; number < 2 * MAX_DEPTH + 2; number++) {
		struct mapping *mapping;
		enum end_cause end = step(walk, lookup_rule(walk, &mapping));

		if (end == END_NONE)
			continue;
		walk->end = end;
		return;
	}
}

/* The function of host.c without fast paths: there is no trail, so the walk is not repeatable. */
void host_walk(const struct host_tables *given, read_memory read, void *context, const u64 *start,
	       struct host_stack *stack)
{
	static struct fast_walk fast;
	struct walk *walk = &fast.walk;

	give(given, read, context);
	for (u32 number = 0; number < REGISTERS; number++)
		walk->at_probe[number] = start[1 + number];
	begin_walk(walk, list_number(0, 0), given->changing, start[0]);
	step_until_end(walk);
	stack->end_pc = walk->pc;
	stack->saves_wanted = walk->saves_wanted;
	stack->hash = 0;
	stack->end = walk->end;
	stack->frame_count = walk->frame_count;
	for (u32 place = 0; place < walk->frame_count && place < MAX_FRAMES; place++)
		stack->frames[place] = walk->frames[place];
	stack->repeatable = 0;
	stack->slot_count = 0;
}
