/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Types of deferred walks (calls/deferral.h), shared by both sides like those of shared.h. */
#ifndef DEFERRED_WALK_H
#define DEFERRED_WALK_H

#include "shared.h"
#include "walk/rules.h"

enum deferral {
	/* Frames of the kernel's walk that are sent; user space checks its own frames against them. */
	DEFERRED_FRAMES = 32,
	/* Return addresses that return probes have replaced on one stack, at most; with more, the walk is not sent. */
	DEFERRED_RETURN_PROBES = 16,
	/* Size of the parts in which the stack is copied, in bytes; each begins at a multiple of it. */
	STACK_PART = 512,
	/*
	 * Parts of a copy if the depth of the stack is unknown, and at most if it is known; the latter is a power of
	 * two.
	 */
	USUAL_PARTS = 64,
	STACK_PARTS = 256,
	/* Maximum number of copies that the kernel side remembers. */
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

/* The parts of stacks that were sent last, each at its place. Only for the kernel side. */
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
 * Everything that a walk depends on, except the tables, the mappings and the stack. It is followed by the parts of the
 * stack that differ from what was sent last for their place with the same number of `sent_stack`: from one walk to the
 * next, mostly the innermost frames change.
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
	/*
	 * Result in the kernel: enum end_cause, the number of frames, of which `frames` has the first ones, and where
	 * the walk ended.
	 */
	u32 end;
	u32 frame_count;
	u64 end_pc;
	/* Start of the walk. */
	u64 pc;
	u64 link;
	u64 link_known;
	u64 registers[REGISTERS];
	/*
	 * Start of the copy, number of its parts, and index in `sent_stacks`; `unread` has a bit for each part that
	 * could not be read.
	 */
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
