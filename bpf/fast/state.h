/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The state of the fast paths: window, trail and memo. */
#pragma once

#include "shared.h"
#include "walk/state.h"

/* Maximum size of a stack window, and of the stack range that has all slots of a trail, in bytes. */
#define WINDOW_BITS 14
#define WINDOW_BYTES (1 << WINDOW_BITS)
/* Maximum number of slots of a trail: about 100 frames. */
#define TRAIL_SLOT_BITS 7
#define TRAIL_SLOTS (1 << TRAIL_SLOT_BITS)
/* Maximum number of checks of a trail: words that identify objects which can be unloaded, see struct mapping. */
#define TRAIL_CHECKS 8

/* Dependency of a walk on the current frame's frame pointer. */
enum fp_use {
	/* Unused so far; from the register at the start. */
	FP_OF_START = 0,
	/* Unused so far; from a slot. */
	FP_OF_SLOT = 1,
	/* Used, and in the trail. */
	FP_IN_TRAIL = 2,
};

struct trail {
	/* Stack pointer at the walk's start, to which `slot_at` is relative. */
	u64 base;
	/* Bytes of the stack from `base` to the end of the highest slot. */
	u64 stack_bytes;
	u64 slot_count;
	u32 check_count;
	/* Not 0 if the trail is incomplete. */
	u64 unrepeatable;
	/* Set if the walk depends on the initial frame pointer. */
	bool needs_fp;
	/* enum fp_use. Code without frame pointers uses their register for any value, on which few walks depend. */
	u8 fp_use;
	u64 fp_slot;
	u64 fp_value;
	struct mapping_check checks[TRAIL_CHECKS];
	/* Offset from `base` of each slot that was read, in bytes, and its value. */
	u16 slot_at[TRAIL_SLOTS];
	u64 slot_value[TRAIL_SLOTS];
};

/* Result of a walk, see fast/memo.h. */
struct memo {
	/* Not 0 while a probe uses it. */
	u64 taken;
	/* State of the process slot, see enum generation; 0 if the memo is empty. */
	u64 state;
	/* Registers at the start of the walk. */
	u64 pc;
	u64 sp;
	u64 fp;
	/* Mask of bits in which the frame pointer may differ: 0, or all if the walk does not depend on it. */
	u64 fp_unneeded;
	/* Index of the stack record that the walk found, and the allocator function that was called from there. */
	u32 stack;
	u32 function;
	/* Id of that stack without its Python frames, and the number of their chain, which is not part of a walk. */
	u64 native_id;
	u32 python;
	/* The walk's trail. The last slot is repeated up to a multiple of four. */
	u32 stack_bytes;
	u16 slot_count;
	u16 check_count;
	u16 slot_at[TRAIL_SLOTS];
	u64 slot_value[TRAIL_SLOTS];
	struct mapping_check checks[TRAIL_CHECKS];
};

/* A walk and the state of its fast paths. */
struct fast_walk {
	struct walk walk;
	/* Not the last field: the verifier assumes that window_word can read a few bytes past it. */
	u64 window[WINDOW_BYTES / 8];
	u64 window_start;
	u64 window_bytes;
	/* AVMA of the end of the thread's stack when it was last walked to the end; 0 if unknown. */
	u64 stack_end;
	struct trail trail;
	/* Set if the trail is needed: recording it takes a tenth of a walk's time. */
	bool leaves_trail;
	/* Set to walk without fast paths. */
	bool plain;
};

_Static_assert(offsetof(struct fast_walk, walk) == 0, "a pointer to the walk is one to all of it");
