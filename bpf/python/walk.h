/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Room for reading a chain of Python frames, one for each scratch. */
#pragma once

#include "python/layout.h"
#include "shared.h"

/* Set in the address of a code object: the frame is the outermost that one frame of the main function runs. */
#define PYTHON_IS_ENTRY (1ULL << 63)
/* Bits of a reference to an object that tell, from 3.14 on, how it is counted. */
#define PYTHON_TAG 3ULL

struct python_walk {
	/* AVMA of the frame to be read next; 0 after the last. */
	u64 at;
	/* AVMA of the frame that ends the chain, if such a frame does. */
	u64 base;
	/* AVMA of the block of frames that was reached, from the newest on; 0 if there is none. And the block before it, if that was read. */
	u64 chunk;
	u64 previous;
	u64 previous_bytes;
	bool knows_previous;
	/* Address and size of what is in the window. */
	u64 low;
	u64 bytes;
	u64 hash;
	/* Frames so far, and those of them that were not in the window. */
	u32 frame_count;
	u32 outside;
	/* enum python_end. */
	u32 end;
	u32 unused;
	/* Frames, by number: the code object, with PYTHON_IS_ENTRY, or 0 for what only marks one; the instruction, as an offset; and as stored. */
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
