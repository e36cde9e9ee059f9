/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From an address in the process to the mapping that holds it. */
#pragma once

/* Which of the lists in `mappings`, and of the caches in `rule_cache`, a walk uses throughout. */
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

/* The mapping that holds `address`, or NULL. Branch-free: unused entries start beyond every address. */
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
