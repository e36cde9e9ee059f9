/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Types of notes on freed memory (process/freed.h), shared by both sides like those of shared.h, which has no room for
 * them.
 */
#ifndef FREED_MEMORY_H
#define FREED_MEMORY_H

#include "shared.h"

enum freed_memory {
	/* Entries of `trusts`; a power of two. A doubt about one instance applies to all that share its entry. */
	TRUSTS = 1024,
	/* Bit of the end of a taken range: an allocator took it for itself. */
	TAKEN_BY_ALLOCATOR = 1,
};

/* A block that was freed, by instance and address. */
struct freed_block {
	/* Requested size. */
	u64 size;
	/* CLOCK_MONOTONIC, in nanoseconds; not later than any new use of the memory. */
	u64 freed_at;
};

/* Memory that a mapping call has given the process, by instance and start. */
struct taken_range {
	/* End of the range, a multiple of two, plus TAKEN_BY_ALLOCATOR. */
	u64 end;
	/* CLOCK_MONOTONIC, in nanoseconds. */
	u64 taken_at;
};

/* Why memory that was freed before may be in use again without a block there. */
enum doubt {
	DOUBT_NONE = 0,
	/* A block was allocated and could not be recorded. */
	DOUBT_LOST_BLOCK = 1,
	/* The end of a call was not seen. */
	DOUBT_UNSEEN_END = 2,
	/* A block was freed twice without having been allocated in between, as far as was seen. */
	DOUBT_FREED_AGAIN = 3,
	/* A nested call allocated a block other than the outer call's. */
	DOUBT_NESTED_CALL = 4,
	/* A mapping call could not be noted. */
	DOUBT_LOST_MAPPING = 5,
	/* A mapping can grow without a call (MAP_GROWSDOWN). */
	DOUBT_GROWING_MAPPING = 6,
	DOUBTS,
};

/* Reliability of the notes on an instance. */
struct trust {
	/* Time before which notes of frees are void: CLOCK_MONOTONIC, in nanoseconds. */
	u64 void_before;
	/* Not 0 once all notes are void for good. */
	u64 is_lost;
	/* Last cause, of enum doubt. */
	u64 cause;
	/* Freed blocks that could not be noted: no room. */
	u64 not_noted;
};

_Static_assert(sizeof(struct freed_block) == 16, "user space reads it as two words");
_Static_assert(sizeof(struct taken_range) == 16, "user space reads it as two words");
_Static_assert(sizeof(struct trust) == 32, "user space reads it as four words");

#endif
