/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The cookie of the probe that was hit: its function and the meaning of its arguments; bpf/shared.h has the roles. */
#pragma once

#include "calls/regs.h"
#include "config.h"
#include "kernel.h"
#include "maps.h"

/*
 * The attach cookie of a probe describes its function's arguments. Argument numbers are 1-based, 0 for none.
 *
 *    bit 0..7     8..11   12..14     15       16..19      20..23        24..27
 *    function     role    size arg   string   count arg   pointer arg   result arg
 *
 *    bit 28                  29     30           31         32            33..63
 *    returns seen by `ret`   leaf   at a `ret`   can move   for records   module
 *
 * The size is the product of size and count, or that of a copy of the string at size, cut to count bytes if there is a
 * count; the pointer is the block to free or resize; the result argument points to where the block's address is stored
 * on success (status 0), if it is not returned. A leaf calls no other probed function of its module: calls within it
 * can be distinguished from later ones without a probe at its return. A call that can move can end on another thread. A
 * function for records is one by which its allocator also allocates its own records. A probe at a `ret` has only that
 * bit. A USDT probe has the binary logarithm of its distance, 0 if that is not known, in bits 12..16.
 */
enum cookie_shift {
	COOKIE_FUNCTION = 0,
	COOKIE_ROLE = 8,
	COOKIE_SIZE = 12,
	COOKIE_STRING = 15,
	COOKIE_COUNT = 16,
	COOKIE_POINTER = 20,
	COOKIE_RESULT = 24,
	COOKIE_BY_RET = 28,
	COOKIE_LEAF = 29,
	COOKIE_AT_RET = 30,
	COOKIE_MOVES = 31,
	COOKIE_DISTANCE = 12,
	COOKIE_FOR_RECORDS = 32,
	COOKIE_MODULE = 33,
};

/*
 * Probes can share an event. Its cookie has ROLE_OF_PROBE as its role and the event's number as its module. The probe's
 * own cookie is looked up by that number and the probe's offset in its page, which is unique among the probes of an
 * event.
 */
enum shared_events {
	ROLE_OF_PROBE = 15,
	PROBE_PLACE_BITS = 12,
};

static __always_inline u32 cookie_field(u64 cookie, enum cookie_shift shift)
{
	return cookie >> shift & 15;
}

static __always_inline u32 size_argument(u64 cookie)
{
	return cookie >> COOKIE_SIZE & 7;
}

/*
 * Returns the key of a probe's own cookie: the number of the shared event, and the probe's offset in its page, which is
 * the same wherever the file is mapped.
 */
static __always_inline u64 probe_key(u64 cookie, u64 address)
{
	return cookie >> COOKIE_MODULE << PROBE_PLACE_BITS | (address & ((1 << PROBE_PLACE_BITS) - 1));
}

static __always_inline u64 cookie_of_probe(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx);
	u64 key, *own;

	if (!events_are_shared || cookie_field(cookie, COOKIE_ROLE) != ROLE_OF_PROBE)
		return cookie;
	key = probe_key(cookie, program_counter(ctx));
	own = bpf_map_lookup_elem(&event_cookies, &key);
	return own ? *own : 0;
}
