/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The state of a walk, and the window through which it reads the stack. */
#pragma once

/* Bytes read at once while it is not known where the stack ends. */
#define WINDOW_GUESS 2048
/* Bytes read before the slot that missed: where the same frame keeps its other saved registers. */
#define WINDOW_LEAD 48
#define PAGE_BYTES 4096

/* A program that runs: see unwind-tables/src/program.rs. */
struct program {
	/* Word of the next op. */
	u32 at;
	u32 depth;
	enum end_cause end;
	bool is_signal_frame;
	bool sp_is_set;
#ifdef __TARGET_ARCH_arm64
	bool lr_is_set;
	u64 lr;
#endif
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
#ifdef __TARGET_ARCH_arm64
	/* The link register, if the frame was running. */
	u64 lr;
	bool lr_known;
#endif
	/* Mapping list and rule cache in use. */
	u32 list;
	struct list_state list_state;
	enum found_by found_by;
	enum end_cause end;
	u32 frame_count;
	u64 hash;
	u64 window_start;
	u64 window_bytes;
	/* Where the thread's stack ended when it was last walked to its end; 0 if that is not known. */
	u64 stack_end;
	/* What the walk depends on, see fast/trail.h, and whether that is of interest: it takes a tenth of the time. */
	struct trail trail;
	bool leaves_trail;
	/* The walk does without what only makes it faster. */
	bool plain;
	/* An address in an object that the walk needs an image of saves of, and that has none; or 0. */
	u64 saves_wanted;
	/* The register that is looked for, then its value; frames in which registers may still be looked for. */
	u64 found;
	u32 looks_left;
	struct program program;
	/* The general registers where the walk began, by their DWARF numbers. */
	u64 at_probe[REGISTERS];
	u64 window[WINDOW_BYTES / 8];
	u64 frames[MAX_FRAMES];
	/* Stack and frame pointer of each of `frames`. */
	u64 sps[MAX_FRAMES];
	u64 fps[MAX_FRAMES];
};

/* Whether a walk takes a short way that `allowed` says is there: not when it is the one that others are checked by. */
static __always_inline bool takes(bool allowed, struct walk *walk)
{
	return allowed && !(check_walks && walk->plain);
}

/* The window must not answer from an earlier walk. */
static __always_inline void forget_window(struct walk *walk)
{
	walk->window_start = 0;
	walk->window_bytes = 0;
}

/* Reads `bytes` of the stack from `start` on; they are all that the window holds then. */
static __always_inline bool read_window(struct walk *walk, u64 start, u64 bytes)
{
	walk->window_start = start;
	walk->window_bytes = 0;
	OPAQUE(bytes);
	if (bytes < 8 || bytes > WINDOW_BYTES || bpf_probe_read_user(walk->window, bytes, (void *)start))
		return false;
	walk->window_bytes = bytes;
	return true;
}

/* Bytes from `start` to where the stack probably ends, as far as a window holds them. */
static __always_inline u64 window_to_end(struct walk *walk, u64 start)
{
	u64 bytes = walk->stack_end - start;

	if (walk->stack_end <= start)
		return WINDOW_GUESS;
	return bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES;
}

/* The 8 bytes at `offset`, which is at most WINDOW_BYTES - 8: a mask tells the verifier so without a branch. */
static __always_inline u64 window_word(struct walk *walk, u64 offset)
{
	OPAQUE(offset);
	return *(stack_slot *)((u8 *)walk->window + (offset & (WINDOW_BYTES - 1)));
}

/* Reads one slot by itself or, first, with all that follows it up to the end of the window or page. */
static __always_inline bool refill_window(struct walk *walk, u64 slot)
{
	u64 lead = slot - WINDOW_LEAD;
	u64 to_page_end = PAGE_BYTES - (slot & (PAGE_BYTES - 1));

	if (takes(walk_window, walk)) {
		if (read_window(walk, lead, window_to_end(walk, lead)) && walk->window_bytes >= WINDOW_LEAD + 8)
			return true;
		if (read_window(walk, slot, to_page_end))
			return true;
	}
	return read_window(walk, slot, 8);
}

/* The 8 bytes of stack memory at `slot`; what depends on them is the caller's affair. */
static __always_inline bool look_at_slot(struct walk *walk, u64 slot, u64 *value)
{
	u64 offset = slot - walk->window_start;

	if (offset + 8 > walk->window_bytes || offset >= walk->window_bytes) {
		if (!refill_window(walk, slot)) {
			walk->trail.unrepeatable = true;
			return false;
		}
		offset = slot - walk->window_start;
	}
	*value = window_word(walk, offset);
	return true;
}

/* The same, where the walk depends on them. */
static __always_inline bool read_slot(struct walk *walk, u64 slot, u64 *value)
{
	if (!look_at_slot(walk, slot, value))
		return false;
	leave_trail(&walk->trail, slot, *value);
	return true;
}

/* The same, where they are a frame pointer. */
static __always_inline bool read_fp_slot(struct walk *walk, u64 slot, u64 *value)
{
	if (!look_at_slot(walk, slot, value))
		return false;
	leave_fp(&walk->trail, slot, *value);
	return true;
}
