/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Recognizes return addresses. Mirrors unwind-tables/src/walk/call.rs. */
#pragma once

#include "kernel.h"
#include "walk/arch.h"
#include "walk/mappings.h"
#include "walk/return_probes.h"

/* Meanings of an address on the stack, by the code that it leads to. */
enum returns {
	RETURNS_NO = 0,
	/* A return address: behind a call, or a trampoline. */
	RETURNS_YES = 1,
	/* An address in generated code that is not behind a call: a return address if the walk leads to native code. */
	RETURNS_ON_TRIAL = 2,
};

/* Returns whether there is a call before `ra`. Not static: verified once, by itself. */
__noinline bool is_after_call(u64 ra)
{
	u64 code;

	return is_aligned(ra) && bpf_probe_read_user(&code, 8, (void *)(ra - 8)) == 0 && ends_in_call(code);
}

static __always_inline bool is_generated(struct mapping *mapping)
{
	return mapping->kind == MAPPING_ANONYMOUS || mapping->kind == MAPPING_ANONYMOUS_PUSHED ||
	       (mapping->kind >= MAPPING_ANONYMOUS_LINKED && mapping->kind <= MAPPING_ANONYMOUS_STUB);
}

/*
 * Returns whether `ra` can be a return address: after a call, in a trampoline, or in generated code. The mapping need
 * not be current: lookup_rule checks that. An address behind a call counts without a mapping, too: generated code can
 * be newer than the known mappings. The walk then ends, and user space may finish it with newer mappings.
 */
static __always_inline enum returns judge_return_address(struct walk *walk, u64 ra)
{
	struct mapping *mapping = find_mapping(walk->list, ra - 1);

	depend_on_more(walk);
	if ((mapping && mapping->kind == MAPPING_TRAMPOLINE) || is_after_call(ra) || is_trampoline(ra))
		return RETURNS_YES;
	return mapping && is_generated(mapping) ? RETURNS_ON_TRIAL : RETURNS_NO;
}
