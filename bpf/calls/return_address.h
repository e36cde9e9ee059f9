/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Location of a call's return address, from the function's entry to its return. A call is identified by its return
 * slot: the stack pointer at the function's entry, which is lower for calls within the call and the same for a function
 * that it jumps to.
 *
 * On x86-64 the slot holds the return address throughout. On AArch64 the link register holds it at the entry and at the
 * `ret`; in between, the function has saved it somewhere in its frame, which begins at the return slot.
 */
#pragma once

#include "calls/regs.h"
#include "kernel.h"
#include "walk/arch.h"
#include "walk/return_probes.h"

/* Location of a function's return address at its entry and at its `ret`. */
struct way_back {
	u64 slot;
	struct link link;
};

static __always_inline u64 return_slot(struct pt_regs *ctx)
{
	return ctx->sp;
}

static __always_inline struct way_back way_back(struct pt_regs *ctx)
{
	return (struct way_back){ .slot = return_slot(ctx), .link = link_of(ctx) };
}

/* Returns false if the return address cannot be read. */
static __always_inline bool read_return_address(struct way_back back, u64 *address)
{
	return read_returns_to(back.slot, back.link, address);
}

/*
 * Bytes of a frame that are searched for its saved return address, and words read at once. Of the allocators of Debian
 * 12, jemalloc's xallocx has the largest frame on AArch64, 544 bytes. If the address is further down in a larger frame,
 * calls within that function are recorded by themselves, and the function's own call as abandoned.
 */
#define SEARCHED_BYTES 1024
#define SEARCHED_WORDS 16

/* A saved return address to search for. */
struct saved_address {
	/* The original address, and the trampoline; 0 if unknown or none. */
	u64 address;
	u64 trampoline;
	/* Range of the stack to search, from `high` down. */
	u64 low;
	u64 high;
};

/* Returns all bits set if `a` and `b` are equal, else 0, by arithmetic: the verifier would follow each branch. */
static __always_inline u64 mask_if_equal(u64 a, u64 b)
{
	u64 different = a ^ b;
	u64 mask = ((different | -different) >> 63) - 1;

	OPAQUE(mask);
	return mask;
}

/*
 * Returns whichever of the two addresses is found in the range, or 0. Not static: verified once, by itself, not for
 * each state of its caller.
 */
__noinline u64 find_saved(struct saved_address *saved)
{
	u64 words[SEARCHED_WORDS] = {};
	u64 high, found = 0;

	if (!saved)
		return 0;
	high = saved->high;
	for (u32 part = 0; part < SEARCHED_BYTES / sizeof(words); part++) {
		u64 bytes = high - saved->low;

		if (high <= saved->low || found)
			break;
		if (bytes > sizeof(words))
			bytes = sizeof(words);
		OPAQUE(bytes);
		if (bytes < 8 || bytes > sizeof(words) || bpf_probe_read_user(words, bytes, (void *)(high - bytes)))
			break;
		/* Words beyond these bytes are 0, or were read before and did not match. */
#pragma clang loop unroll(disable)
		for (u32 number = 0; number < SEARCHED_WORDS; number++) {
			u64 word = without_code(words[number]);
			u64 matches = mask_if_equal(word, saved->address) | mask_if_equal(word, saved->trampoline);

			/* 0 never matches: it stands for an unknown address and is frequent on a stack. */
			matches &= ~mask_if_equal(word, 0);
			found ^= (found ^ word) & matches;
		}
		high -= bytes;
	}
	return found;
}

/*
 * Finds the return address, or the trampoline that replaced it, of a call that began at `slot` with `address`, at the
 * entry of a function that returns by `back` and may be called within it. Returns false if neither is found.
 */
static __always_inline bool read_kept_address(u64 slot, u64 address, struct way_back back, u64 *kept)
{
	u64 low = back.slot;

	if (RETURN_SLOT_BYTES > 0 || low == slot)
		return read_returns_to(slot, back.link, kept);

	struct saved_address saved = {
		.address = address,
		.trampoline = trampoline_address(),
		.low = slot - low > SEARCHED_BYTES ? slot - SEARCHED_BYTES : low,
		.high = slot,
	};

	*kept = find_saved(&saved);
	return *kept;
}
