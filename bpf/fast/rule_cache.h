/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rule cache: from an address to its rule, one cache for each mapping list. */
#pragma once

#include "config.h"
#include "fast/window.h"
#include "maps.h"
#include "walk/unwind.h"

/* Binary logarithm of the number of slots of one cache: slot and 32-bit tag cover all bits of a place in a region. */
enum cache_shape {
	/* Number of an address's highest bits, which select its region, and of bits that number the cached regions. */
	REGION_BITS = 5,
	CACHED_REGION_BITS = 2,
	PLACE_BITS = ADDRESS_BITS - REGION_BITS,
	CACHE_BITS = PLACE_BITS + CACHED_REGION_BITS - 32,
};

/*
 * Regions with code: programs linked at a fixed address, other programs (at two thirds of the address space), and
 * mapped objects.
 */
enum cached_region {
	REGION_FIXED = 0,
	REGION_PROGRAM = (1 << REGION_BITS) * 2 / 3,
	REGION_MAPPED = (1 << REGION_BITS) - 1,
};

/* Returns 1 if two numbers below 2^63 are equal, else 0, without a branch. */
static __always_inline u64 are_equal(u64 a, u64 b)
{
	u64 equal = ((a ^ b) - 1) >> 63;

	OPAQUE(equal);
	return equal;
}

/* Bit set in the tag of an address that is in none of these regions; no entry has it. */
#define NO_TAG (1ULL << 32)

/*
 * Returns the cache slot for an address, and in `tag` the tag that its entry must have, or at least NO_TAG if the
 * address is not cached.
 *
 * Multiplication by an odd number permutes the numbers of some bits. The product's high bits select the slot, and the
 * 32 bits below are the tag, so slot and tag identify exactly one address of the regions. The bit between tag and rule
 * is set if the rule is valid only while its mapping is, which must be verified again.
 */
static __always_inline volatile u64 *cache_slot(u32 list, u64 address, u64 *tag)
{
	u64 region = address >> PLACE_BITS;
	u64 number = are_equal(region, REGION_PROGRAM) | are_equal(region, REGION_MAPPED) << 1;
	u64 is_cached = number | are_equal(region, REGION_FIXED);
	u64 key = number << PLACE_BITS | (address & ((1ULL << PLACE_BITS) - 1));
	u64 mixed = key * 0x9e3779b97f4a7c15ULL & ((1ULL << (CACHE_BITS + 32)) - 1);
	u32 slot = (list << CACHE_BITS | (u32)(mixed >> 32)) & cache_mask;
	u64 *cache = rule_cache;

	*tag = (mixed & 0xffffffff) | (((is_cached - 1) >> 63) * NO_TAG);
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
	u64 misses = entry >> 32 ^ tag;
	struct mapping *mapping;

	if (!misses && rule && (!unsettled || is_verified(&walk->list_state, address)))
		return rule;
	rule = lookup_rule(walk, &mapping);
	if (!mapping)
		return rule;
	unsettled = mapping->trust != TRUST_SETTLED;
	if (takes(walk_cache, fast) && is_cacheable(walk, rule) && tag < NO_TAG)
		*cached = tag << 32 | unsettled << 31 | rule;
	return rule;
}

/*
 * Returns the cached rule for the code before a return address, if its mapping needs no verification; else RULE_NONE.
 */
static __always_inline u32 plain_rule(u32 list, u64 pc)
{
	u64 tag;
	u64 entry = *cache_slot(list, pc - 1, &tag);
	u64 misses = (entry >> 32 ^ tag) | (entry >> 31 & 1);

	return misses ? RULE_NONE : entry & 0x7fffffff;
}
