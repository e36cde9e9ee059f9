/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Room for reading a chain of Python frames, one for each scratch. */
#pragma once

#include "python/layout.h"
#include "shared.h"

/* Set in the address of a code object: the frame is the entry of its group. */
#define PYTHON_IS_ENTRY (1ULL << 63)
/* Bits of a reference to an object that say, from Python 3.14 on, how it is counted. */
#define PYTHON_TAG 3ULL

struct python_walk {
	/* AVMA of the frame to be read next; 0 after the last. */
	u64 at;
	/* AVMA of the base frame, which ends the chain; 0 if there is none. */
	u64 base;
	/*
	 * AVMA of the current block of frames, at first the newest; 0 if there is none. `previous` is the block before,
	 * if it was read.
	 */
	u64 chunk;
	u64 previous;
	u64 previous_bytes;
	bool knows_previous;
	/* Address and size of the window's contents. */
	u64 low;
	u64 bytes;
	u64 hash;
	/* Frames so far, and those of them that were read outside the window. */
	u32 frame_count;
	u32 outside;
	/* enum python_end. */
	u32 end;
	u32 unused;
	/*
	 * Frames, by number: address of the code object, 0 for a mark alone, with PYTHON_IS_ENTRY; instruction, as an
	 * offset; stored form.
	 */
	u64 codes[PYTHON_FRAMES];
	u32 instructions[PYTHON_FRAMES];
	u64 stored[PYTHON_FRAMES];
	/* Structures of the interpreter, as they were read last. */
	union {
		u8 runtime[PYTHON_RUNTIME_BYTES];
		u8 state[PYTHON_STATE_BYTES];
		u8 code[PYTHON_CODE_BYTES];
	};
	u8 frame[PYTHON_FRAME_BYTES];
	/* The record of a code object, before it is known whether it is a new one. */
	struct python_code made;
	/* Not the last field: the verifier assumes that a field can be read a few bytes past it. */
	u8 window[PYTHON_WINDOW_BYTES];
	u8 behind_window[2 * PYTHON_FRAME_BYTES];
};
