/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Values of maps that only the BPF side sees. */
#pragma once

/* How it is known that a call has ended. */
enum call_end {
	/* By a return probe, which makes the trampoline's address the return address until then. */
	SEEN_BY_RETURN_PROBE = 0,
	/* By a probe on each `ret` instruction. */
	SEEN_BY_RET = 1,
	/* Not at all: its block is not to be recorded, and neither is what is called within it. */
	END_UNSEEN = 2,
	/* Not at all, though it should be: the thread has all return probes that it can have. */
	END_LOST = 3,
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
	/* More of them had lived long than not, by so many. */
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

/* The stack that is asked for: of which owner, by which function called from where. */
struct wanted_stack {
	u64 pc;
	struct link link;
	u64 owner;
	u32 function;
	/* Of the owner's slot; what the walk uses of it; whether a change is announced that this does not have. */
	u64 state;
	u64 view;
	bool changing;
	/* A memo was looked at: what is found is to be in it. */
	bool tries_memo;
	/* A copy; nothing but zeros when the thread has none. */
	struct habits habits;
};

struct scratch {
	/* Not 0 while a walk uses this. */
	u64 taken;
	struct wanted_stack wanted;
	struct walk walk;
};
