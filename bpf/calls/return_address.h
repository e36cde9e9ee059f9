/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Where the return address of a call is, from the function's entry to its return. A call is named by its return slot: the
 * stack pointer at the function's entry, which is lower for calls within the call, and the same for a function that it
 * jumps to.
 *
 * On x86-64 that is also where the return address is, throughout. On AArch64 it is in the link register at the entry and
 * at the `ret`; in between, it is wherever the function saved it in its frame, which begins at the return slot.
 */
#pragma once

#include "calls/regs.h"
#include "kernel.h"
#include "walk/arch.h"
#include "walk/return_probes.h"

/* What says where a function returns to, at its entry and at its `ret`. */
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

/* Returns whether it could be read. */
static __always_inline bool read_return_address(struct way_back back, u64 *address)
{
	return read_returns_to(back.slot, back.link, address);
}

/*
 * Bytes of a frame in which its saved return address is looked for; and how many words at once. Of the allocators of Debian
 * 12, jemalloc's xallocx has the largest frame on AArch64, 544 bytes. In a larger one nothing may be found: what is called
 * within that function counts by itself then, and the function's own call as one whose end was not seen.
 */
#define SEARCHED_BYTES 1024
#define SEARCHED_WORDS 16

/* A return address, as it may have been saved. */
struct saved_address {
	/* As it was; and as a return probe made it, or 0. */
	u64 address;
	u64 trampoline;
	/* Where it can be, down from where. */
	u64 low;
	u64 high;
};

/* The one of both that is in memory, or 0. Not inlined for its stack: few calls come here. */
static __noinline u64 find_saved(struct saved_address *saved)
{
	u64 words[SEARCHED_WORDS];
	u64 high = saved->high, found = 0;

	for (u32 part = 0; part < SEARCHED_BYTES / sizeof(words); part++) {
		u64 bytes = high - saved->low;

		if (high <= saved->low || found)
			break;
		if (bytes > sizeof(words))
			bytes = sizeof(words);
		OPAQUE(bytes);
		if (bytes < 8 || bytes > sizeof(words) || bpf_probe_read_user(words, bytes, (void *)(high - bytes)))
			break;
		for (u32 number = 0; number < SEARCHED_WORDS; number++) {
			u64 word = without_code(words[number]);

			if (8 * number + 8 > bytes)
				break;
			/* What is not known is 0, and so is much of a stack. */
			if (word && (word == saved->address || word == saved->trampoline))
				found = word;
		}
		high -= bytes;
	}
	return found;
}

/*
 * What the return address has become of a call that began at `slot` with `address`, while a function that may be called
 * within it begins, with its own way back. Returns whether anything is known of it.
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
