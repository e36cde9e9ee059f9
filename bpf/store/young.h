/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Young blocks: those allocated recently. Most blocks are freed soon, and inserting each into a hash table that
 * allocates memory costs more than the rest of a probe; a young place costs a few words.
 *
 * A block's key selects its one place. A probe that needs an occupied place first moves the block in it to the block
 * table: the newest blocks stay. The word of a place is its state:
 *
 *    bit 0..1     enum young_state
 *    bit 2        set while the block is being moved
 *    bit 3..63    number of blocks put here, so that no two blocks of a place have the same word
 *
 * All transitions are exchanges of the word that fail if it has changed since it was read, so data read before a
 * successful exchange belongs to the block of that word. Only the probe that made a place busy writes to it; only the
 * mover of a block clears the moving bit.
 *
 * A moved block is in the table before it leaves its place. In between, other threads, which cannot wait, can free it
 * and allocate its address again: both happen in the place as usual, and the mover detects it and removes its copy from
 * the table. So while the moving bit is set, the place is authoritative for that block's key and the table is not; only
 * a block of the same key can be put there.
 */
#pragma once

#include "calls/thread.h"
#include "hash.h"
#include "seam.h"
#include "store/block_table.h"
#include "store/store_config.h"
#include "store/store_maps.h"

/* Score from which a thread's blocks are predicted to live long, and the maximum score. */
#define LIVES_LONG 32
#define MOST_LONG_LIVES 64
/*
 * Interval of blocks that are made young on trial, in a thread whose blocks are predicted to live long; a power of two.
 */
#define YOUNG_TRIAL 16

/* Result of a search for a block in its young place. */
enum young_search {
	/* Not in its place: if recorded, it is in the block table. */
	YOUNG_ELSEWHERE,
	YOUNG_FOUND,
	/* Not recorded, even if the block table has a copy of it. */
	YOUNG_NOWHERE,
};

static __always_inline struct young_block *place_at(u64 number)
{
	struct young_block *all = young;

	OPAQUE(all);
	return &all[number & young_mask];
}

static __always_inline struct young_block *place_of(struct block_key *key)
{
	return place_at(mix(key->instance, key->address) >> 32);
}

static __always_inline u64 young_word(struct young_block *place)
{
	u64 word = *(volatile u64 *)&place->word;

	asm volatile("" ::: "memory");
	return word;
}

static __always_inline bool is_full(u64 word)
{
	return (word & YOUNG_STATE) == YOUNG_FULL;
}

static __always_inline bool is_of(struct young_block *place, struct block_key *key)
{
	return place->key.address == key->address && place->key.instance == key->instance;
}

/* Changes the place's word from `word` to `next`; returns false if it was no longer `word`. */
static __always_inline bool exchange_word(struct young_block *place, u64 word, u64 next)
{
	return __sync_val_compare_and_swap(&place->word, word, next) == word;
}

static __always_inline bool empty_place(struct young_block *place, u64 word)
{
	return exchange_word(place, word, word & ~(u64)YOUNG_STATE);
}

/* Copies a block out of its place and empties the place. */
static __always_inline enum young_search take_young(struct block_key *key, struct block *taken)
{
	struct young_block *place = place_of(key);

	/* Movers can change the word between read and exchange, one after the other; then the block is in the table. */
#pragma unroll
	for (u32 attempt = 0; attempt < 3; attempt++) {
		u64 word = young_word(place);

		if (!is_of(place, key))
			return YOUNG_ELSEWHERE;
		if (!is_full(word))
			return word & YOUNG_MOVING ? YOUNG_NOWHERE : YOUNG_ELSEWHERE;
		/* Valid only if the exchange succeeds: the word is then still that of this block. */
		*taken = place->block;
		if (empty_place(place, word))
			return YOUNG_FOUND;
	}
	return YOUNG_ELSEWHERE;
}

/*
 * Adds to the word of a place, after all that was written before: an addition whose result is not used has no order on
 * arm64.
 */
static __always_inline void add_to_word(struct young_block *place, u64 amount)
{
	u64 before = __sync_fetch_and_add(&place->word, amount);

	OPAQUE(before);
}

/* Returns whether the place of a key, and not the block table, is authoritative for the key. */
static __always_inline bool is_young(struct block_key *key)
{
	struct young_block *place = place_of(key);
	u64 word = young_word(place);

	return is_of(place, key) && (is_full(word) || word & YOUNG_MOVING);
}

/*
 * Moves the block in a place with `word` to the block table. Returns true if the place is then busy, owned by the
 * caller.
 */
static __always_inline bool move_out(struct young_block *place, u64 word)
{
	struct block_key key = place->key;
	struct block block = place->block;
	u64 moving = word | YOUNG_MOVING;
	bool entered;

	/* Success proves that the copies above are of one block, still in its place; no other probe can move it now. */
	if (!exchange_word(place, word, moving))
		return false;
	/* From insertion to the second exchange, the block is in both: the moving bit makes the place authoritative. */
	entered = !enter_block(&key, &block);
	if (entered && exchange_word(place, moving, (word & ~(u64)YOUNG_STATE) | YOUNG_BUSY))
		return true;
	/*
	 * The block was freed meanwhile, or the table is full. The copy is removed before the bit is cleared, as the
	 * table is authoritative afterwards. Cleared by addition: others change the rest of the word at the same time.
	 */
	if (entered)
		remove_block(&key);
	add_to_word(place, -(u64)YOUNG_MOVING);
	return false;
}

/* Puts a block into its place; returns false if the place is not available. The key is not recorded anywhere. */
static __always_inline bool put_young(struct block_key *key, struct block *block)
{
	struct young_block *place = place_of(key);
	u64 word = young_word(place);

	if (is_full(word) && !(word & YOUNG_MOVING)) {
		if (!move_out(place, word))
			return false;
		/* Here the place is busy, and this probe's. */
	} else if (word & YOUNG_STATE || (word & YOUNG_MOVING && !is_of(place, key)) ||
		   !exchange_word(place, word, word | YOUNG_BUSY)) {
		return false;
	}
	place->key = *key;
	place->block = *block;
	/*
	 * From busy to full, with the next count. By addition, as a mover can clear its bit; publishes key and block.
	 */
	add_to_word(place, YOUNG_PUT - YOUNG_BUSY + YOUNG_FULL);
	return true;
}

/*
 * Returns whether a thread's next block should be made young. If blocks live long, each one put into a place moves
 * another out, and both together cost more than inserting into the table, which has just freed the element of the same
 * address.
 */
static __always_inline bool may_die_young(struct lifetimes *lifetimes)
{
	return !lifetimes || lifetimes->long_lives < LIVES_LONG || (++lifetimes->untried & (YOUNG_TRIAL - 1)) == 0;
}

/* Updates the score after a free: `was_young` if the block was in its place, else it was in the table. */
static __always_inline void judge_lifetime(struct lifetimes *lifetimes, bool was_young)
{
	if (!lifetimes)
		return;

	u32 lives = lifetimes->long_lives;
	/* If only one of YOUNG_TRIAL blocks is young, it counts for the others too. */
	u32 evidence = lives < LIVES_LONG ? 1 : YOUNG_TRIAL;

	if (was_young)
		lifetimes->long_lives = lives > evidence ? lives - evidence : 0;
	else if (lives < MOST_LONG_LIVES)
		lifetimes->long_lives = lives + 1;
}
