/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stack reads of a walk: through the stack window, and recorded in the trail. */
#pragma once

#include "config.h"
#include "fast/state.h"
#include "fast/trail.h"
#include "kernel.h"
#include "walk/state.h"

/* Bytes read at once while the end of the stack is unknown. */
#define WINDOW_GUESS 2048
/* Bytes read below a slot outside of the window: the same frame's other saved registers. */
#define WINDOW_LEAD 48

/*
 * Returns whether a walk uses a fast path that is enabled by `allowed`. A walk that others are checked against uses
 * none.
 */
static __always_inline bool takes(bool allowed, struct fast_walk *fast)
{
	return allowed && !(check_walks && fast->plain);
}

/* Empties the window, so that no data of an earlier walk is used. */
static __always_inline void forget_window(struct fast_walk *fast)
{
	fast->window_start = 0;
	fast->window_bytes = 0;
}

/*
 * Fills the window with `bytes` of the stack from `start` on. Returns false, with an empty window, if they cannot be
 * read.
 */
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

/* Returns the bytes from `start` to the probable end of the stack, at most WINDOW_BYTES. */
static __always_inline u64 window_to_end(struct fast_walk *fast, u64 start)
{
	u64 bytes = fast->stack_end - start;

	if (fast->stack_end <= start)
		return WINDOW_GUESS;
	return bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES;
}

/* Returns the 8 bytes at `offset`, at most WINDOW_BYTES - 8; the mask bounds it for the verifier without a branch. */
static __always_inline u64 window_word(struct fast_walk *fast, u64 offset)
{
	OPAQUE(offset);
	return *(stack_slot *)((u8 *)fast->window + (offset & (WINDOW_BYTES - 1)));
}

/*
 * Fills the window with a slot and the bytes behind it up to the end of the stack; if they cannot be read, up to the
 * end of the page; else with the slot only.
 */
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

/* Reads the 8 bytes of stack memory at `slot`, without an entry in the trail. Returns false if they cannot be read. */
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

static __always_inline bool peek_slot(struct walk *walk, u64 slot, u64 *value)
{
	return look_at_slot(fast_of(walk), slot, value);
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
