/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How a walk reads the stack: through a window, and leaving a trail. */
#pragma once

#include "config.h"
#include "fast/trail.h"
#include "kernel.h"
#include "walk/state.h"

/* Bytes read at once while it is not known where the stack ends. */
#define WINDOW_GUESS 2048
/* Bytes read before the slot that missed: where the same frame keeps its other saved registers. */
#define WINDOW_LEAD 48
#define PAGE_BYTES 4096

/* A walk, and what makes it faster. */
struct fast_walk {
	struct walk walk;
	/* Not last: to the verifier, window_word can read some bytes behind it. */
	u64 window[WINDOW_BYTES / 8];
	u64 window_start;
	u64 window_bytes;
	/* Where the thread's stack ended when it was last walked to its end; 0 if that is not known. */
	u64 stack_end;
	/* What the walk depends on, and whether that is of interest: it takes a tenth of the time. */
	struct trail trail;
	bool leaves_trail;
	/* The walk does without all of this. */
	bool plain;
};

_Static_assert(offsetof(struct fast_walk, walk) == 0, "a pointer to the walk is one to all of it");

static __always_inline struct fast_walk *fast_of(struct walk *walk)
{
	return (struct fast_walk *)walk;
}

/* Whether a walk takes a fast path that `allowed` says is there: not when it is the one that others are checked by. */
static __always_inline bool takes(bool allowed, struct fast_walk *fast)
{
	return allowed && !(check_walks && fast->plain);
}

/* The window must not answer from an earlier walk. */
static __always_inline void forget_window(struct fast_walk *fast)
{
	fast->window_start = 0;
	fast->window_bytes = 0;
}

/* Reads `bytes` of the stack from `start` on; they are all that the window holds then. */
static __always_inline bool read_window(struct fast_walk *fast, u64 start, u64 bytes)
{
	fast->window_start = start;
	fast->window_bytes = 0;
	OPAQUE(bytes);
	if (bytes < 8 || bytes > WINDOW_BYTES || bpf_probe_read_user(fast->window, bytes, (void *)start))
		return false;
	fast->window_bytes = bytes;
	return true;
}

/* Bytes from `start` to where the stack probably ends, as far as a window holds them. */
static __always_inline u64 window_to_end(struct fast_walk *fast, u64 start)
{
	u64 bytes = fast->stack_end - start;

	if (fast->stack_end <= start)
		return WINDOW_GUESS;
	return bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES;
}

/* The 8 bytes at `offset`, which is at most WINDOW_BYTES - 8: a mask tells the verifier so without a branch. */
static __always_inline u64 window_word(struct fast_walk *fast, u64 offset)
{
	OPAQUE(offset);
	return *(stack_slot *)((u8 *)fast->window + (offset & (WINDOW_BYTES - 1)));
}

/* Reads one slot by itself or, first, with all that follows it up to the end of the window or page. */
static __always_inline bool refill_window(struct fast_walk *fast, u64 slot)
{
	u64 lead = slot - WINDOW_LEAD;
	u64 to_page_end = PAGE_BYTES - (slot & (PAGE_BYTES - 1));

	if (takes(walk_window, fast)) {
		if (read_window(fast, lead, window_to_end(fast, lead)) && fast->window_bytes >= WINDOW_LEAD + 8)
			return true;
		if (read_window(fast, slot, to_page_end))
			return true;
	}
	return read_window(fast, slot, 8);
}

/* The 8 bytes of stack memory at `slot`; what depends on them is the caller's affair. */
static __always_inline bool look_at_slot(struct fast_walk *fast, u64 slot, u64 *value)
{
	u64 offset = slot - fast->window_start;

	if (offset + 8 > fast->window_bytes || offset >= fast->window_bytes) {
		if (!refill_window(fast, slot)) {
			fast->trail.unrepeatable = true;
			return false;
		}
		offset = slot - fast->window_start;
	}
	*value = window_word(fast, offset);
	return true;
}

static __always_inline bool read_slot(struct walk *walk, u64 slot, u64 *value)
{
	if (!look_at_slot(fast_of(walk), slot, value))
		return false;
	leave_trail(&fast_of(walk)->trail, slot, *value);
	return true;
}

static __always_inline bool read_fp_slot(struct walk *walk, u64 slot, u64 *value)
{
	if (!look_at_slot(fast_of(walk), slot, value))
		return false;
	leave_fp(&fast_of(walk)->trail, slot, *value);
	return true;
}

static __always_inline void depend_on_fp(struct walk *walk)
{
	use_fp(&fast_of(walk)->trail);
}

static __always_inline void depend_on_checks(struct walk *walk, struct mapping *mapping)
{
	leave_check(&fast_of(walk)->trail, &mapping->checks[0]);
	leave_check(&fast_of(walk)->trail, &mapping->checks[1]);
}

static __always_inline void depend_on_more(struct walk *walk)
{
	fast_of(walk)->trail.unrepeatable = true;
}
