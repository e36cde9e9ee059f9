/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Types of walks that user space finishes (calls/deferral.h), for both sides: as those of shared.h. */
#ifndef DEFERRED_WALK_H
#define DEFERRED_WALK_H

#include "shared.h"
#include "walk/rules.h"

enum deferral {
	/* Frames of the walk in the kernel that are sent, by which user space checks its own. */
	DEFERRED_FRAMES = 32,
	/* Return addresses that return probes have replaced on one stack, at most; with more, the walk is not sent. */
	DEFERRED_RETURN_PROBES = 16,
	/* Bytes of the stack are copied in pieces of this size, at multiples of it. */
	STACK_PIECE = 4096,
	/* MAX bytes of a copy, if it is not known how deep the stack is, and if it is. */
	USUAL_COPY = 8 * STACK_PIECE,
	LONGEST_COPY = 32 * STACK_PIECE,
};

/* A return address that a return probe has replaced, and its slot. */
struct replaced_address {
	u64 slot;
	u64 address;
};

/* All that a walk depends on but the tables, the mappings and the stack, a copy of which follows. */
struct deferred_walk {
	/* CLOCK_MONOTONIC, in nanoseconds. */
	u64 at;
	u32 instance;
	/* Index of the record that stands for the stack. */
	u32 stand_in;
	u32 function;
	/* Epoch of the list that the kernel has walked with. */
	u32 epoch;
	/* Result in the kernel: enum end_cause, where, and the number of frames, of which `frames` has the first ones. */
	u32 end;
	u32 frame_count;
	u64 end_pc;
	/* Start of the walk. */
	u64 pc;
	u64 link;
	u64 link_known;
	u64 registers[REGISTERS];
	/* Where the copy was, and a bit for each of its pieces that could be read. */
	u64 stack_start;
	u64 stack_pieces;
	/* Trampoline of return probes, and the addresses that it has replaced. */
	u64 trampoline;
	u64 replaced_count;
	struct replaced_address replaced[DEFERRED_RETURN_PROBES];
	u64 frames[DEFERRED_FRAMES];
};

#endif
