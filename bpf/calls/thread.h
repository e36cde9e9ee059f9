/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is kept of a thread. */
#pragma once

#include "shared.h"

/* How it is known that a call has ended. */
enum call_end {
	/* By a return probe, which makes the trampoline's address the return address until then. */
	SEEN_BY_RETURN_PROBE = 0,
	/* By a probe on each `ret` instruction. */
	SEEN_BY_RET = 1,
	/* Not at all: its block is not to be recorded, and neither is what is called within it. */
	CALL_UNTRACKED = 2,
	/* Not at all, though it should be: the thread has all return probes that it can have. */
	CALL_LOST = 3,
};

/* The allocator call that a thread is in, if `return_slot` is not 0. */
struct call {
	/* Names the call: see calls/return_address.h. */
	u64 return_slot;
	/* What it was when the call began. */
	u64 return_address;
	/* Where the call was probed: names the function, and its module. */
	u64 probed_at;
	u32 module;
	u64 size;
	/* How many blocks its block stands for, as `struct block` has it; 0 if it is not to be recorded. */
	u32 weight;
	/* Where the result is stored, for functions that do not return it. */
	u64 result_at;
	/* The block to resize: its address, and its record if it was known. */
	u64 old_address;
	struct block old;
	bool old_known;
	/* enum call_end. */
	u8 end;
	u8 function;
	u8 role;
};

/* What lies between a thread and the next call that it records. */
struct sampler {
	/* Calls or bytes, see enum sampling. */
	u64 until_next;
	union {
		/* Calls behind the next one until another is chosen from as many. */
		u64 behind_next;
		/* The mean number of bytes by which `until_next` was drawn; 0: it has not been. */
		u64 mean;
	};
	/* A round of calls has begun. */
	bool begun;
};

/* What a thread's last walks say about its next ones. */
struct habits {
	/* Where its stack ended; 0 if that is not known. */
	u64 stack_end;
	/* How much the memo has been worth lately. */
	u32 memo_worth;
	/* Walks without it. */
	u32 walks;
};

/* What the blocks that a thread took back lately say about how long its next ones will live. */
struct lifetimes {
	/* A score: one more for each that had left its young place, less for each that had not. At least 0. */
	u32 long_lives;
	/* Blocks since then that were taken to live long. */
	u32 untried;
};

struct thread {
	struct call call;
	struct sampler sampler;
	struct habits habits;
	struct lifetimes lifetimes;
	/* The known block that the thread freed last, the function's return slot then, and where it was probed. */
	u64 freed;
	u64 freed_slot;
	u64 freed_at;
	/* What the thread runs in, see process/processes.h; 0 when it is not known yet. */
	u64 owner;
};
