/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Lookup of the mapping that holds an AVMA, and the checks that it still does. */
#pragma once

#include "config.h"
#include "kernel.h"
#include "maps.h"
#include "walk/arch.h"

/* Returns the number of the list in `mappings` and of the cache in `rule_cache` that a walk uses throughout. */
static __always_inline u32 list_number(u32 slot, u32 generation)
{
	return 2 * slot + (generation & 1);
}

static __always_inline struct mapping *mapping_of(u32 list, u32 number)
{
	struct mapping *all = mappings;

	OPAQUE(all);
	return &all[(list << mapping_bits | number) & mapping_mask];
}

/* Returns the mapping that holds `address`, or NULL. A binary search without branches: unused entries start above every
 * address. */
static __always_inline struct mapping *find_mapping(u32 list, u64 address)
{
	u64 found = 0;

	if (address >> ADDRESS_BITS)
		return NULL;
#pragma unroll
	for (u32 bit = 16; bit-- > 0;) {
		if (bit < mapping_bits) {
			u64 candidate = found | 1ULL << bit;
			u64 below = (mapping_of(list, candidate)->start - address - 1) >> 63;

			OPAQUE(below);
			found |= below << bit;
		}
	}
	struct mapping *mapping = mapping_of(list, found);

	if (address < mapping->start || address >= mapping->end)
		return NULL;
	return mapping;
}

static __always_inline bool is_verified(struct list_state *state, u64 address)
{
	return address >= state->verified_start && address < state->verified_end;
}

/* Returns whether the mapping is as in the list, by the checks that it requires (enum mapping_trust). */
static __always_inline bool is_current(struct list_state *state, struct mapping *mapping)
{
	struct mapping_check *checks = mapping->checks;
	u64 different = 0;

	if (mapping->trust == TRUST_SETTLED || is_verified(state, mapping->start))
		return true;
	if (mapping->trust & TRUST_UNCHANGED)
		different = state->changing;
	/* One combined result: the verifier would follow an exit for each. */
	if (mapping->trust & TRUST_CHECKED) {
		u64 first, second;

		different |= bpf_probe_read_user(&first, 8, (void *)checks[0].at);
		different |= bpf_probe_read_user(&second, 8, (void *)checks[1].at);
		different |= (first ^ checks[0].word) | (second ^ checks[1].word);
	}
	OPAQUE(different);
	if (different)
		return false;
	state->verified_start = mapping->start;
	state->verified_end = mapping->end;
	return true;
}
