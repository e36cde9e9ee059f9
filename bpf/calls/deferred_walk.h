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
	/* Bytes of the stack are copied in parts of this size, at multiples of it. */
	STACK_PART = 512,
	/* Parts of a copy, if it is not known how deep the stack is, and MAX parts if it is. A power of two. */
	USUAL_PARTS = 64,
	STACK_PARTS = 256,
	/* MAX copies that the kernel side remembers. */
	SENT_STACKS = 64,
};

enum {
	PART_WORDS = STACK_PART / 8,
	PARTS_PER_WORD = 64,
};

/* A return address that a return probe has replaced, and its slot. */
struct replaced_address {
	u64 slot;
	u64 address;
};

/* A part of a stack, and its place: its address in parts, modulo STACK_PARTS. */
struct stack_part {
	u64 place;
	u64 words[PART_WORDS];
};

/* The parts of stacks that were sent last, each at its place. Of the kernel side only. */
struct sent_stack {
	/* Not 0 while a walk uses it. */
	u64 taken;
	/* The part that was read last. */
	u64 read[PART_WORDS];
	struct stack_part parts[STACK_PARTS];
	/* Set for parts that have changed since they were sent. */
	u8 is_unsent[STACK_PARTS];
	/* Places of the parts of a walk that are to be sent. */
	u64 unsent_count;
	u8 unsent[STACK_PARTS];
};

/*
 * All that a walk depends on but the tables, the mappings and the stack. Of the stack's parts, those follow that are not what was
 * sent last for their place with the same number of `sent_stack`: from one walk to the next, mostly the innermost frames change.
 */
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
	/* Where the copy begins, its parts, and a bit for each that could not be read. */
	u64 stack_start;
	u32 parts;
	u32 sent_stack;
	/* Number of the chain of Python frames; 0 for none. */
	u32 python;
	u32 unused;
	u64 unread[STACK_PARTS / PARTS_PER_WORD];
	/* Trampoline of return probes, and the addresses that it has replaced. */
	u64 trampoline;
	u64 replaced_count;
	struct replaced_address replaced[DEFERRED_RETURN_PROBES];
	u64 frames[DEFERRED_FRAMES];
};

#endif
