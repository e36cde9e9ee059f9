/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rule cache: from an address to its rule, one cache for each mapping list. */
#pragma once

#include "config.h"
#include "fast/window.h"
#include "maps.h"
#include "walk/unwind.h"

/* Binary logarithm of the number of slots of one cache: slot and 32-bit tag cover all ADDRESS_BITS. */
enum cache_shape {
	CACHE_BITS = ADDRESS_BITS - 32,
};

/*
 * Returns the cache slot for an address, and in `tag` the tag that its entry must have.
 *
 * Multiplication by an odd number permutes the addresses of ADDRESS_BITS. The product's high bits select the slot, and the
 * 32 bits below are the tag, so slot and tag identify exactly one address. The bit between tag and rule is set if the rule
 * is valid only while its mapping is, which must be verified again.
 */
static __always_inline volatile u64 *cache_slot(u32 list, u64 address, u64 *tag)
{
	u64 mixed = address * 0x9e3779b97f4a7c15ULL & ((1ULL << ADDRESS_BITS) - 1);
	u32 slot = (list << CACHE_BITS | (u32)(mixed >> (ADDRESS_BITS - CACHE_BITS))) & cache_mask;
	u64 *cache = rule_cache;

	*tag = mixed & ((1ULL << (ADDRESS_BITS - CACHE_BITS)) - 1);
	OPAQUE(cache);
	return (volatile u64 *)&cache[slot];
}

/* Returns whether the rule for the frame at `pc` is the same for every walk, as long as its mapping is valid. */
static __always_inline bool is_cacheable(struct walk *walk, u32 rule)
{
	/* The start of a walk is trusted; a pc found by a frame pointer must follow a call. */
	if (rule_kind(rule) == RULE_CHAIN && walk->found_by == FOUND_BY_PROBE)
		return is_after_call(walk->pc);
	return rule_kind(rule) != RULE_STOP || rule_a(rule) < STOP_PENDING || rule_a(rule) >= STOP_ANONYMOUS_LINKED;
}

/* Returns the rule for the frame at `pc`, from the cache if possible. */
static __always_inline u32 cached_rule(struct walk *walk)
{
	struct fast_walk *fast = fast_of(walk);
	u64 address = walk->pc - walk->pc_adjust;
	u64 tag;
	volatile u64 *cached = cache_slot(walk->list, address, &tag);
	u64 entry = takes(walk_cache, fast) ? *cached : 0;
	u32 rule = entry & 0x7fffffff;
	u64 unsettled = entry >> 31 & 1;
	u64 misses = (entry >> 32 ^ tag) | address >> ADDRESS_BITS;
	struct mapping *mapping;

	if (!misses && rule && (!unsettled || is_verified(&walk->list_state, address)))
		return rule;
	rule = lookup_rule(walk, &mapping);
	if (!mapping)
		return rule;
	unsettled = mapping->trust != TRUST_SETTLED;
	if (takes(walk_cache, fast) && is_cacheable(walk, rule))
		*cached = tag << 32 | unsettled << 31 | rule;
	return rule;
}

/* Returns the cached rule for the code before a return address, if its mapping needs no verification; else RULE_NONE. */
static __always_inline u32 plain_rule(u32 list, u64 pc)
{
	u64 tag;
	u64 entry = *cache_slot(list, pc - 1, &tag);
	u64 misses = (entry >> 32 ^ tag) | (pc - 1) >> ADDRESS_BITS | (entry >> 31 & 1);

	return misses ? RULE_NONE : entry & 0x7fffffff;
}
