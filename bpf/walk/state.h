/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The state of a walk, and what its parts ask of each other.
 *
 * The walk does not know how it reads the stack, nor that anybody remembers what it depended on: that is below, and
 * fast/window.h does it.
 */
#pragma once

#include "seam.h"
#include "shared.h"
#include "walk/rules.h"

/* The link register of AArch64, if it is known; nothing on x86-64. */
struct link {
	u64 lr;
	u64 known;
};

/* What a walk knows about the mapping list it uses. */
struct list_state {
	/* A change of the mappings is announced that the list does not have yet. */
	u64 changing;
	/* The mapping that was verified last: frames come in runs of the same object. */
	u64 verified_start;
	u64 verified_end;
};

/* A program that runs: see unwind-tables/src/program.rs. */
struct program {
	/* Word of the next op. */
	u32 at;
	u32 depth;
	enum end_cause end;
	bool is_signal_frame;
	bool sp_is_set;
	struct link link;
	u64 cfa;
	u64 ra;
	u64 fp;
	u64 sp;
	u64 operands[MAX_OPERANDS];
};

/* A walk in progress. Not on the BPF stack: the verifier would tell every frame's state apart. */
struct walk {
	u64 pc;
	u64 sp;
	u64 fp;
	/* 1 when `pc` is a return address: the call before it is what the frame is doing. */
	u64 pc_adjust;
	/* Of the frame, if it was running. */
	struct link link;
	/* Mapping list and rule cache in use. */
	u32 list;
	struct list_state list_state;
	enum found_by found_by;
	enum end_cause end;
	u32 frame_count;
	u64 hash;
	/* An address in an object that the walk needs an image of saves of, and that has none; or 0. */
	u64 saves_wanted;
	/* The register that is looked for, then its value; frames in which registers may still be looked for. */
	u64 found;
	u32 looks_left;
	struct program program;
	/* The general registers where the walk began, by their DWARF numbers. */
	u64 at_probe[REGISTERS];
	u64 frames[MAX_FRAMES];
	/* Stack and frame pointer of each of `frames`. */
	u64 sps[MAX_FRAMES];
	u64 fps[MAX_FRAMES];
};

/*
 * From who includes the walk. What a step depends on beside `pc` and `sp`, the mapping list and the tables goes through
 * these, so that all of it can be remembered.
 */

/* The 8 bytes of stack memory at `slot`. Returns whether they can be read. */
static __always_inline bool read_slot(struct walk *walk, u64 slot, u64 *value);
/* The same for the caller's frame pointer, on which nothing need ever depend. */
static __always_inline bool read_fp_slot(struct walk *walk, u64 slot, u64 *value);
/* The walk goes on by what the frame pointer holds. */
static __always_inline void depend_on_fp(struct walk *walk);
/* The words outside the stack that tell the mapping's object from others were read, and held what they should. */
static __always_inline void depend_on_checks(struct walk *walk, struct mapping *mapping);
/* The walk depends on something else. */
static __always_inline void depend_on_more(struct walk *walk);

/* From unwind.h and registers.h, for the rules of a machine (arch.h). */

/* Goes to the caller, whose registers are known. */
static __always_inline void go_to(struct walk *walk, u64 pc, u64 sp, u64 fp);
/* The caller's registers: its stack pointer is the CFA, the others are in slots (0: fp is the same). */
static __always_inline enum end_cause go_to_caller(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot);
/* Follows the frame pointer, or ends with `implausible` when it cannot be one. */
static __always_inline enum end_cause apply_fp(struct walk *walk, enum end_cause implausible);
/* A rule that says why it is none. */
static __always_inline enum end_cause apply_stop(struct walk *walk, u32 rule);
/* A register that another frame may have saved; `program.end` says whether it could be found. */
static __always_inline u64 find_register(struct walk *walk, u32 number);

/* Where the plain rule of a frame says that its caller is: the equations of `apply_equation`, for many frames at once. */
struct caller_slots {
	u64 cfa;
	u64 ra;
	/* Not above `ra`. */
	u64 fp;
	/* All bits, or none if the frame pointer is the same. */
	u64 has_fp;
};
