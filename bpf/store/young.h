/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Blocks that were allocated lately. Most blocks are freed soon, and a hash table that takes memory for each costs more
 * than all else that a probe does for them; here they cost a few words.
 *
 * A block has one place, by its key. Who needs a place that another block is in moves that one to the block table, and
 * then takes it: the newest stay. A place's word says in one what is there:
 *
 *    bit 0..1     enum young_state
 *    bit 2        it is being moved
 *    bit 3..63    how many blocks were put here: no two states of a place have the same word
 *
 * A place changes hands by exchanges of its word that fail if anything has happened there since it was read, so
 * that what was read before a successful exchange is of the block that the word was of. Whoever made a place busy is the
 * only one to write to it; whoever moves a block is the only one to say that it is not moved any more.
 *
 * A block that is moved is in the table before it leaves its place. In between it can be freed, and its address be
 * allocated again, by threads that cannot wait: both happen in the place, as ever, and the mover, who notices, takes its
 * copy out of the table again. So, while a place says that its block is moved, the place is right about that block's key,
 * and the table is not; nothing but a block of the same key is put there.
 */
#pragma once

#include "calls/thread.h"
#include "config.h"
#include "hash.h"
#include "maps.h"
#include "store/block_table.h"

/* Evidence from which on a thread's blocks are taken to live long, and the most that is kept of it. */
#define LIVES_LONG 32
#define MOST_LONG_LIVES 64
/* Of a thread whose blocks live long, one block of so many is put among the young ones all the same, to see. */
#define YOUNG_TRIAL 16

/* What became of a search for a block. */
enum young_search {
	/* If it is anywhere, it is in the block table. */
	YOUNG_ELSEWHERE,
	YOUNG_FOUND,
	/* It is nowhere, whatever the block table says. */
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

/* Whether the place changed from what `word` says to what `next` says. */
static __always_inline bool exchange_word(struct young_block *place, u64 word, u64 next)
{
	return __sync_val_compare_and_swap(&place->word, word, next) == word;
}

static __always_inline bool empty_place(struct young_block *place, u64 word)
{
	return exchange_word(place, word, word & ~(u64)YOUNG_STATE);
}

/* Copies a block out of its place, which becomes empty. */
static __always_inline enum young_search take_young(struct block_key *key, struct block *taken)
{
	struct young_block *place = place_of(key);

	/* A mover can come between, and another; then the block is in the table. */
#pragma unroll
	for (u32 attempt = 0; attempt < 3; attempt++) {
		u64 word = young_word(place);

		if (!is_of(place, key))
			return YOUNG_ELSEWHERE;
		if (!is_full(word))
			return word & YOUNG_MOVING ? YOUNG_NOWHERE : YOUNG_ELSEWHERE;
		*taken = place->block;
		if (empty_place(place, word))
			return YOUNG_FOUND;
	}
	return YOUNG_ELSEWHERE;
}

/* Whether the place of a key has the last word on it. */
static __always_inline bool is_young(struct block_key *key)
{
	struct young_block *place = place_of(key);
	u64 word = young_word(place);

	return is_of(place, key) && (is_full(word) || word & YOUNG_MOVING);
}

/* Moves the block that is in a place, whose word is `word`, to the table. Returns whether the place is the caller's. */
static __always_inline bool move_out(struct young_block *place, u64 word)
{
	struct block_key key = place->key;
	struct block block = place->block;
	u64 moving = word | YOUNG_MOVING;
	bool entered;

	if (!exchange_word(place, word, moving))
		return false;
	entered = !enter_block(&key, &block);
	if (entered && exchange_word(place, moving, (word & ~(u64)YOUNG_STATE) | YOUNG_BUSY))
		return true;
	/* It was freed in between, or there is no room for it. */
	if (entered)
		remove_block(&key);
	__sync_fetch_and_add(&place->word, -(u64)YOUNG_MOVING);
	return false;
}

/* Puts a block in its place, if that can be had. The key is nowhere. */
static __always_inline bool put_young(struct block_key *key, struct block *block)
{
	struct young_block *place = place_of(key);
	u64 word = young_word(place);

	if (is_full(word) && !(word & YOUNG_MOVING)) {
		if (!move_out(place, word))
			return false;
	} else if (word & YOUNG_STATE || (word & YOUNG_MOVING && !is_of(place, key)) ||
		   !exchange_word(place, word, word | YOUNG_BUSY)) {
		return false;
	}
	place->key = *key;
	place->block = *block;
	__sync_fetch_and_add(&place->word, YOUNG_PUT - YOUNG_BUSY + YOUNG_FULL);
	return true;
}

/*
 * Whether a thread's next block is worth a place. Where blocks live long, each that is put here has another moved out, and
 * both cost more than to enter the table at once, where the last block of the same address has just been.
 */
static __always_inline bool may_die_young(struct lifetimes *lifetimes)
{
	return !lifetimes || lifetimes->long_lives < LIVES_LONG || (++lifetimes->untried & (YOUNG_TRIAL - 1)) == 0;
}

/* A block was taken back, out of its place or out of the table. */
static __always_inline void judge_lifetime(struct lifetimes *lifetimes, bool was_young)
{
	if (!lifetimes)
		return;

	u32 lives = lifetimes->long_lives;
	/* Where few are tried, one stands for those that were not. */
	u32 evidence = lives < LIVES_LONG ? 1 : YOUNG_TRIAL;

	if (was_young)
		lifetimes->long_lives = lives > evidence ? lives - evidence : 0;
	else if (lives < MOST_LONG_LIVES)
		lifetimes->long_lives = lives + 1;
}
