/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Types of the queue of mapping calls and page faults (process/regions.h, process/faults.h, process/takes.h), shared by
 * both sides like those of shared.h.
 */
#ifndef MEMORY_EVENTS_H
#define MEMORY_EVENTS_H

#include "shared.h"

/*
 * System calls that change mappings or, with --faults, their contents. Their function numbers are the last below
 * MAX_FUNCTIONS.
 */
enum region_call {
	CALL_MMAP = 0,
	CALL_MREMAP = 1,
	CALL_BRK = 2,
	CALL_MUNMAP = 3,
	CALL_MADVISE = 4,
	REGION_CALLS,
};

/* A mapping call that is about to remove mappings or their contents, or that has ended. */
struct region_event {
	u32 instance;
	/* Thread id, in the initial pid namespace. */
	u32 thread;
	/* enum region_call. */
	u8 call;
	u8 ended;
	u16 unused;
	/* Index of the stack record, if it made a mapping. */
	u32 stack;
	u64 arguments[REGION_ARGUMENTS];
	/* Return value of an ended call; the current break for a brk that begins; else 0. */
	u64 result;
	/* CLOCK_MONOTONIC. */
	u64 time;
};

/* A page fault (--faults), in the queue of the mapping calls. */
struct fault_event {
	/* The address that was to be accessed. */
	u64 address;
	u32 instance;
	/* Index of the stack record. */
	u32 stack;
};

/* Way in which a process takes memory that neither its mapping calls nor its page faults show. */
enum take_kind {
	/* It gets a file descriptor. */
	TAKE_DESCRIPTOR = 0,
	/* It writes to a file in memory. */
	TAKE_WRITE = 1,
};

/* Such memory, in the same queue. */
struct take_event {
	/* The descriptor, or the bytes written. */
	u64 amount;
	u32 instance;
	/* Index of the stack record. */
	u32 stack;
	/* enum take_kind. */
	u32 kind;
	u32 unused;
};

_Static_assert(sizeof(struct region_event) == 72, "user space reads it as nine words");
_Static_assert(sizeof(struct fault_event) == 16, "user space tells it from a mapping call by its size");
_Static_assert(sizeof(struct take_event) == 24, "user space tells it from both by its size");

#endif
