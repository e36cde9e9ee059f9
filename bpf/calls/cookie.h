/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The cookie of the probe that was hit: its function and the meaning of its arguments, see enum cookie_shift. */
#pragma once

#include "calls/regs.h"
#include "config.h"
#include "kernel.h"
#include "maps.h"

static __always_inline u32 cookie_field(u64 cookie, enum cookie_shift shift)
{
	return cookie >> shift & 15;
}

/* Returns the key of a probe's cookie: the event that it shares, and its place in its page, where its file is mapped anywhere. */
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
