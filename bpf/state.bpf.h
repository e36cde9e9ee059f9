/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Values of maps that only the BPF side sees. */
#pragma once

/* The allocator call that a thread is in, if `return_slot` is not 0. */
struct call {
	/* Where the call's return address is: names the call. */
	u64 return_slot;
	u64 size;
	/* Where the result is stored, for functions that do not return it. */
	u64 result_at;
	/* The block to resize: its address, and its record if it was known. */
	u64 old_address;
	struct block old;
	bool old_known;
	u8 function;
	u8 role;
};

struct thread {
	struct call call;
	/* What the thread runs in, see processes.bpf.h; 0 when it is not known yet. */
	u64 owner;
};

struct scratch {
	/* Not 0 while a walk uses this. */
	u64 taken;
	struct walk walk;
};
