/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The state of a walk, and the functions that its parts require of each other.
 *
 * The walk reads the stack and reports its dependencies through functions that are declared here and defined in
 * fast/window.h, so it is independent of the stack window and the trail.
 */
#pragma once

#include "seam.h"
#include "shared.h"
#include "walk/rules.h"

/* The link register of AArch64, if known; unused on x86-64. */
struct link {
	u64 lr;
	u64 known;
};

/* State of the mapping list that a walk uses. */
struct list_state {
	/* Not 0 if a change of the mappings was announced that the list does not contain yet. */
	u64 changing;
	/* Range of the mapping that was verified last: adjacent frames are often in the same object. */
	u64 verified_start;
	u64 verified_end;
};

/* State of a running rule program, see unwind-tables/src/program.rs. */
struct program {
	/* Index in `tables` of the next op. */
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

/* Targets of a search in a frame of code without CFI, up to its frame pointer. */
enum look_for {
	/* A pair of this frame pointer and a return address: the frame ends there. */
	LOOK_FOR_PAIR = 1,
	/* A return address of the frame: the frame pointer may be another frame's. */
	LOOK_FOR_CALLER = 2,
};

/* How a function returns, by its code from `pc` on. */
enum how_it_returns {
	/* No return so far. */
	RETURNS_LATER,
	/* Restores the frame pointer last. */
	RETURNS_WITH_FP,
	/* Restores the frame pointer last, from where it leads: it is the function's own. */
	RETURNS_BY_FP,
	/* In another way, or it cannot be seen. */
	RETURNS_OTHERWISE,
};

/*
 * A walk in progress. Not on the BPF stack, where the verifier would track its values and treat each frame as a new
 * state.
 */
struct walk {
	u64 pc;
	u64 sp;
	u64 fp;
	/* 1 if `pc` is a return address, which is looked up one byte lower, in the call before it; 0 if it is exact. */
	u64 pc_adjust;
	/* Link register of the frame; known only if the frame was running, that is, not in a call. */
	struct link link;
	/* Number of the mapping list and rule cache in use. */
	u32 list;
	struct list_state list_state;
	enum found_by found_by;
	enum end_cause end;
	/* Frames so far, including those that are no longer kept. */
	u32 frame_count;
	u64 hash;
	/* AVMA in an object whose saves the walk needs and which has none loaded; 0 if none is needed. */
	u64 saves_wanted;
	/* During a search (registers.h): the number of the wanted register, then its value. */
	u64 found;
	/* Frames that may still be inspected for saved registers. */
	u32 looks_left;
	/* State before a trial of frame pointers of generated code (generated.h); `trial_frames` is 0 without a
	 * trial. */
	u32 trial_frames;
	u64 trial_pc;
	u64 trial_hash;
	/*
	 * During a search in a frame of code without CFI: its next slot; 0 if the frame ends before its frame pointer.
	 */
	u64 looked_at;
	u64 look_until;
	/* Content of the slot before. */
	u64 in_slot;
	/* enum look_for. */
	u32 look_for;
	/* Code of a function that may jump to the frame's, or of the frame's own (own_frame.h). */
	u8 code[JUMPS_LOOKED_FOR + 8];
	/*
	 * AVMA of the function that the frame's code is in, if the frame pointer is its own (own_frame.h); 0 if that is
	 * not known.
	 */
	u64 entry;
	/* Set if the frame pointer of the current frame may be another frame's, and if that of an earlier frame may
	 * have been. */
	bool is_doubtful;
	bool may_lack_callers;
	/* Steps that may still go to a stack that lies lower. */
	u32 switches_left;
	struct program program;
	/* General registers at the start of the walk, by DWARF number. */
	u64 at_probe[REGISTERS];
	/* Frames that are kept, by place (kept_frames.h). */
	u64 frames[MAX_FRAMES];
	/* Stack pointer and frame pointer of each of them. */
	u64 sps[MAX_FRAMES];
	u64 fps[MAX_FRAMES];
};

/*
 * A walk and the state of its fast paths (fast/state.h); the walk is its first field. Functions that are not static,
 * which the verifier checks by themselves, take a pointer to this, as they may use no more memory than the type of
 * their argument has.
 */
struct fast_walk;

static __always_inline bool is_found_by_fp(u32 found_by)
{
	return found_by == FOUND_BY_FP || found_by == FOUND_BY_FP_GENERATED || found_by == FOUND_BY_FP_UNCERTAIN;
}

static __always_inline struct fast_walk *fast_of(struct walk *walk)
{
	return (struct fast_walk *)walk;
}

static __always_inline struct walk *walk_of(struct fast_walk *fast)
{
	return (struct walk *)fast;
}

/*
 * Defined in fast/window.h. All that a step depends on, other than `pc`, `sp`, the mapping list and the tables, goes
 * through these, so that it can be recorded in the trail.
 */

/* Reads the 8 bytes of stack memory at `slot`. Returns false if they cannot be read. */
static __always_inline bool read_slot(struct walk *walk, u64 slot, u64 *value);
/* Reads the slot of the caller's frame pointer, which becomes a dependency only if the walk uses the value. */
static __always_inline bool read_fp_slot(struct walk *walk, u64 slot, u64 *value);
/* Reads a slot without noting a dependency: for walks that depend on more. */
static __always_inline bool peek_slot(struct walk *walk, u64 slot, u64 *value);
/* Notes that the walk uses the value of the frame pointer. */
static __always_inline void depend_on_fp(struct walk *walk);
/* Notes that the mapping's checks, words outside the stack, were read and matched. */
static __always_inline void depend_on_checks(struct walk *walk, struct mapping *mapping);
/* Notes a dependency that the trail cannot express: the walk is not repeatable. */
static __always_inline void depend_on_more(struct walk *walk);

/* Defined in unwind.h and registers.h, for the machine's rules (arch.h). */

/* Goes to the caller with the given registers. */
static __always_inline void go_to(struct walk *walk, u64 pc, u64 sp, u64 fp);
/*
 * Goes to the caller whose stack pointer is the CFA, reading its return address and frame pointer (slot 0: unchanged).
 */
static __always_inline enum end_cause go_to_caller(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot);
/* Goes to the caller by a rule that takes the CFA from the frame pointer: it can be on a stack that lies lower. */
static __always_inline enum end_cause go_to_caller_by_fp(struct walk *walk, u64 cfa, u64 ra_slot, u64 fp_slot);
/* Returns whether the walk may go down to another stack, as CFI by another register than the stack pointer says. */
static __always_inline bool may_switch_stack(struct walk *walk);
/* Goes to the caller by the frame pointer, or ends with `implausible` if its value cannot be a frame pointer. */
static __always_inline enum end_cause apply_fp(struct walk *walk, enum end_cause implausible);
/* Returns the end that a stop rule stands for, or tries the frame pointer for code without CFI. */
static __always_inline enum end_cause apply_stop(struct walk *walk, u32 rule);
/* Returns a register that another frame may have saved; sets `program.end` if it cannot be found. */
static __always_inline u64 find_register(struct walk *walk, u32 number);

/* Result of a plain rule: the equations of `apply_equation`, for use by the loop over several frames. */
struct caller_slots {
	u64 cfa;
	u64 ra;
	/* Not above `ra`. */
	u64 fp;
	/* All bits set; 0 if the frame pointer is unchanged. */
	u64 has_fp;
};
