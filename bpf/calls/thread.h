/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* State of a thread: its allocator call, sampler and habits. */
#pragma once

#include "shared.h"

/* Detection of a call's end. */
enum call_end {
	/* By a return probe, which replaces the return address by the trampoline until then. */
	SEEN_BY_RETURN_PROBE = 0,
	/* By a probe on each `ret` instruction. */
	SEEN_BY_RET = 1,
	/* Not detected: neither its block nor calls within it are to be recorded. */
	CALL_UNTRACKED = 2,
	/* Not detected, though needed: the thread is at MAX_RETURN_PROBES. */
	CALL_LOST = 3,
};

/* The current allocator call of a thread; none if `return_slot` is 0. */
struct call {
	/* Identifies the call, see calls/return_address.h. */
	u64 return_slot;
	/* Return address at the entry, 0 if unknown; unused with a return probe. */
	u64 return_address;
	/* Address of the probe at the entry: identifies the function and its mapping. */
	u64 probed_at;
	u32 module;
	u64 size;
	/* Weight of its block, as in `struct block`; 0 if it is not to be recorded. */
	u32 weight;
	/* Address where the function stores the block's address; 0 if it returns it. */
	u64 result_at;
	/* Block to resize: its address, and its record if `old_known`. */
	u64 old_address;
	struct block old;
	/* Earliest time at which that block can have been freed; 0 if frees are not noted. */
	u64 old_freed_at;
	bool old_known;
	/* The block to resize is the one that the thread allocated last. */
	bool old_is_newest;
	/* enum call_end. */
	u8 end;
	u8 function;
	u8 role;
	/*
	 * Set if the call can end on another thread and is in `moving_calls` (calls/moving.h); the thread on which it
	 * began.
	 */
	bool moves;
	u32 thread;
};

/* Key of a call in `moving_calls`. */
struct call_key {
	u64 owner;
	u64 return_slot;
};

/* State of the choice of calls to record. */
struct sampler {
	/* Calls or bytes before the next chosen one, see enum sampling. */
	u64 until_next;
	union {
		/* SAMPLE_CALLS: calls of the current round after the chosen one. */
		u64 behind_next;
		/* SAMPLE_BYTES: the sampling interval that `until_next` was drawn for; 0: not drawn yet. */
		u64 mean;
	};
	/* SAMPLE_CALLS: set once the first round has begun. */
	bool begun;
};

/* Statistics of a thread's last walks, used to predict the next ones. */
struct habits {
	/* AVMA of the end of its stack; 0 if unknown. */
	u64 stack_end;
	/* Saturating score of recent hits of the memo: +MEMO_FIND_WORTH for each, -1 for each miss. */
	u32 memo_worth;
	/* Walks at a `memo_worth` of 0; one of MEMO_TRIAL tries the memo. */
	u32 walks;
};

/* Lifetimes of the blocks that a thread freed recently, used to predict those of the next ones. */
struct lifetimes {
	/* Saturating score: +1 for each freed block that had left its young place, less for each that had not. */
	u32 long_lives;
	/* Blocks that were predicted to live long; one of YOUNG_TRIAL is put into its young place. */
	u32 untried;
};

/* The time of a thread's last event, see time_of in calls/threads.h. */
struct tick {
	/* The kernel's count of timer ticks at that time. */
	u64 number;
	/* As in `struct block`. */
	u64 time;
};

struct thread {
	struct call call;
	struct sampler sampler;
	struct habits habits;
	struct lifetimes lifetimes;
	struct tick tick;
	/* Address of the block that it allocated last, if it has not begun another call since; else 0. */
	u64 newest;
	/* Last free: the block's address, the function's return slot, and the address of the probe. */
	u64 freed;
	u64 freed_slot;
	u64 freed_at;
	/* Owner of the thread's allocations, see process/processes.h; 0 if unknown. */
	u64 owner;
};

/* Number of places for the state of threads; a power of two. */
#define THREAD_PLACES 4096

/* A place for the state of a thread, see calls/threads.h. */
struct thread_place {
	/* Kernel id of the thread that has it; 0 if none. */
	u32 holder;
	/* Time at which that thread began, by the kernel. */
	u64 started;
	struct thread thread;
};
