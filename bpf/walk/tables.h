/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Lookup of the packed rule for an SVMA in one object's table image. Mirrors unwind-tables/src/image.rs. */
#pragma once

#include "config.h"
#include "maps.h"
#include "seam.h"
#include "walk/rules.h"

static __always_inline u32 word(u32 at)
{
	u32 *words = tables;

	OPAQUE(words);
	return words[at & table_mask];
}

static __always_inline u32 section(u32 image, enum image_header number)
{
	return image + word(image + number);
}

static __always_inline u32 row_at(u32 rows, u32 row)
{
	return word(rows + row / 2) >> (16 * (row % 2)) & 0xffff;
}

/* Returns 1 if a < b, else 0, by arithmetic: a branch would double the verifier's states at each step. */
static __always_inline u64 less(u64 a, u64 b)
{
	u64 difference = a - b;

	/* Hidden before the shift, by which the compiler would recognize a comparison. */
	OPAQUE(difference);
	return difference >> 63;
}

/* Returns the last row of `block` whose address is at or below `pc_low`, or else the row before the block. */
static __always_inline u32 find_row(u32 image, u32 block, u32 pc_low)
{
	u32 index = section(image, IMAGE_INDEX_AT);
	u32 rows = section(image, IMAGE_ROWS_AT);
	u64 end = word(index + block + 1);
	u64 found = word(index + block) - 1;

#pragma unroll
	for (int bit = BLOCK_SHIFT; bit >= 0; bit--) {
		u64 candidate = found + (1ULL << bit);

		found += (less(candidate, end) & less(row_at(rows, candidate) & 0xff, pc_low + 1)) << bit;
	}
	return found;
}

/* Returns the rule of the last escape at or below `row`. */
static __always_inline u32 escaped_rule(u32 image, u32 row)
{
	u32 escapes = section(image, IMAGE_ESCAPES_AT);
	u64 count = word(image + IMAGE_ESCAPE_COUNT);
	u64 found = 0;

#pragma unroll
	for (int bit = ROW_BITS - 1; bit >= 0; bit--) {
		u64 candidate = found + (1ULL << bit);

		found += (less(candidate, count) & less(word(escapes + 2 * candidate), (u64)row + 1)) << bit;
	}
	return word(escapes + 2 * found + 1);
}

static __always_inline u32 rule_of_row(u32 image, u32 row)
{
	u32 number = row_at(section(image, IMAGE_ROWS_AT), row) >> 8;

	if (number == RULE_NUMBER_ESCAPE)
		return escaped_rule(image, row);
	return word(section(image, IMAGE_RULES_AT) + number);
}

/* Returns the number of the row for one address: two addresses in a gap have the same number if everything between
 * them is in the gap, too. Not static: verified once, by itself. */
__noinline u32 row_in_image(u32 image, u64 svma)
{
	u64 first = word(image + IMAGE_FIRST_BLOCK);
	u64 block = (svma >> BLOCK_SHIFT) - first;

	if (block >= word(image + IMAGE_BLOCK_COUNT))
		return svma >> BLOCK_SHIFT < first ? ~0U : ~0U - 1;
	return find_row(image, block, svma & 0xff);
}

/*
 * Returns the packed rule for one address. The number of a wide rule is replaced by the index in `tables` of its
 * program. Not static: verified once, by itself.
 */
__noinline u32 rule_in_image(u32 image, u64 svma)
{
	u64 block = (svma >> BLOCK_SHIFT) - word(image + IMAGE_FIRST_BLOCK);

	if (block >= word(image + IMAGE_BLOCK_COUNT))
		return RULE_GAP;

	u32 row = find_row(image, block, svma & 0xff);
	u32 rule = rule_of_row(image, row);

	if (rule_kind(rule) != RULE_WIDE)
		return rule;
	return RULE(RULE_WIDE, section(image, IMAGE_WIDE_AT) + OP_WORDS * (rule >> RULE_KIND_BITS));
}
