/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The state of a walk, and the window through which it reads the stack. */
#pragma once

/* Stack bytes read at once. One 2 KiB read costs less than two of 8 bytes. */
#define WINDOW_BYTES 2048
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
	/* Mapping list and rule cache in use. */
	u32 list;
	struct list_state list_state;
	enum found_by found_by;
	enum end_cause end;
	u32 frame_count;
	u64 hash;
	u64 window_start;
	u64 window_bytes;
	/* An address in an object that the walk needs an image of saves of, and that has none; or 0. */
	u64 saves_wanted;
	/* The register that is looked for, then its value. */
	u64 found;
	struct program program;
	/* The general registers where the walk began, by their DWARF numbers. */
	u64 at_probe[REGISTERS];
	u64 window[WINDOW_BYTES / 8];
	u64 frames[MAX_FRAMES];
	/* Stack and frame pointer of each of `frames`. */
	u64 sps[MAX_FRAMES];
	u64 fps[MAX_FRAMES];
};

/* Reads one slot by itself or, first, with all that follows it up to the end of the window or page. */
static __always_inline bool refill_window(struct walk *walk, u64 slot)
{
	u64 lead = slot - WINDOW_LEAD;
	u64 to_page_end = PAGE_BYTES - (slot & (PAGE_BYTES - 1));

	walk->window_start = lead;
	walk->window_bytes = WINDOW_BYTES;
	if (bpf_probe_read_user(walk->window, WINDOW_BYTES, (void *)lead) == 0)
		return true;

	walk->window_start = slot;
	walk->window_bytes = to_page_end;
	OPAQUE(to_page_end);
	if (to_page_end >= 8 && to_page_end <= WINDOW_BYTES &&
	    bpf_probe_read_user(walk->window, to_page_end, (void *)slot) == 0)
		return true;

	walk->window_bytes = 8;
	if (bpf_probe_read_user(walk->window, 8, (void *)slot) == 0)
		return true;
	walk->window_bytes = 0;
	return false;
}

/* The 8 bytes of stack memory at `slot`. */
static __always_inline bool read_slot(struct walk *walk, u64 slot, u64 *value)
{
	u64 offset = slot - walk->window_start;

	if (offset + 8 > walk->window_bytes || offset >= walk->window_bytes) {
		if (!refill_window(walk, slot))
			return false;
		offset = slot - walk->window_start;
	}
	OPAQUE(offset);
	if (offset > WINDOW_BYTES - 8)
		return false;
	*value = *(stack_slot *)((u8 *)walk->window + offset);
	return true;
}
