/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Types of Python frames (python/chain.h), for both sides: as those of shared.h. */
#ifndef PYTHON_LAYOUT_H
#define PYTHON_LAYOUT_H

#include "shared.h"

enum python_limits {
	/* MAX frames of a chain that are read. A power of two. */
	PYTHON_FRAMES = 256,
	/* MAX bytes that are read of the interpreter, of a thread's state, of a frame and of a code object, to find their fields. */
	PYTHON_RUNTIME_BYTES = 1024,
	PYTHON_STATE_BYTES = 512,
	PYTHON_FRAME_BYTES = 128,
	PYTHON_CODE_BYTES = 256,
	/* MAX bytes of the block of frames that are read at once. A power of two. */
	PYTHON_WINDOW_BYTES = 8192,
	/* Bytes that are kept of a function's name, the first ones, and of a file's, the last ones. */
	PYTHON_NAME_BYTES = 96,
	PYTHON_FILE_BYTES = 224,
	/* MAX bytes of a table of lines that is kept. */
	PYTHON_LINES_BYTES = 1 << 16,
	/* Numbers that tell code objects apart which follow each other at one address; a power of two. */
	PYTHON_VERSIONS = 4096,
	/* Places of chains that were found last; a power of two. */
	PYTHON_RECENT = 1 << 14,
	/* MAX chains, of which 0 is none. */
	PYTHON_CHAINS = 1 << 16,
};

/* How it is told which Python frames are run by one frame of the interpreter's main function. */
enum python_entry {
	/* Each has its own. */
	PYTHON_ENTRY_EVERY = 0,
	/* The outermost of them has a byte that is not 0. */
	PYTHON_ENTRY_FLAG = 1,
	/* Behind the outermost of them is a frame, of no function, whose owner is PYTHON_OWNED_BY_C or one of greater number. */
	PYTHON_ENTRY_SHIM = 2,
};

enum python_owner {
	PYTHON_OWNED_BY_C = 3,
};

/* How a thread's own state is found: where `value_at` comes from, and what it says. */
enum python_noted {
	/* The value of a thread-specific key: its number is in _PyRuntime. From the thread pointer. */
	PYTHON_NOTED_KEY = 0,
	/* A variable of each thread, at `noted` from the thread pointer. */
	PYTHON_NOTED_FIXED = 1,
	/* As far from the thread pointer as the word at `noted` says, which the loader writes. */
	PYTHON_NOTED_DISTANCE = 2,
	/* In the thread's variables of the object whose number is in the word at `noted`: `variable` bytes behind their start. */
	PYTHON_NOTED_OBJECT = 3,
	/* As the word at `noted` says, which the loader writes: that far from the thread pointer, if it is less than PYTHON_STATIC_BYTES. Else
	 * it is an address, of the object's number and of where the variable is in the thread's variables of that. AArch64. */
	PYTHON_NOTED_DESCRIPTOR = 4,
};

enum python_static {
	/* MAX distance of variables that threads have at their thread pointer. Nothing is at an address that is less, in programs of Linux. */
	PYTHON_STATIC_BYTES = 1 << 20,
};

/* Where an interpreter has its frames: offsets, in bytes, in its structures. By process slot. */
struct python_layout {
	/* Instance whose interpreter it is; written last. */
	u64 instance;
	/* AVMA of _PyRuntime and of PyCode_Type. */
	u64 runtime;
	u64 code_type;
	/* The way to the thread's state (enum python_noted); 0 until it is known, and the key is made. */
	u64 value_at;
	u64 noted;
	/* enum python_noted. From the thread pointer to the address of the table of objects' variables; in those of the object. */
	u32 noted_by;
	u32 objects;
	u32 variable;
	/* Where each object has its type. */
	u32 object_type;
	/* From the thread's id to the value of key 0, and the bytes from one key's to the next one's. */
	u32 values_at;
	u32 value_bytes;
	/* In _PyRuntime: the key, and before it whether it is made; before 3.12, the number of the next interpreter, and behind it the state
	 * of the thread that runs Python code. `current` is 0 if it is not there. */
	u32 key;
	u32 next_interpreter;
	u32 current;
	/* In the thread's state: its size as far as needed, the thread's id, the frame, the newest block of frames, and where the address is
	 * of the frame that all others are called by, which is of no function; 0 if there is none. */
	u32 state_bytes;
	u32 thread_id;
	u32 frame;
	u32 chunk;
	u32 base;
	/* Set if `frame` points to what points to the frame, at this offset. */
	u32 is_indirect;
	u32 indirect;
	/* In a frame. */
	u32 frame_bytes;
	u32 code;
	u32 back;
	u32 instruction;
	/* Set if `instruction` is an address; else it is an offset, of 4 bytes. */
	u32 is_address;
	/* enum python_entry, and where the byte is. */
	u32 entry;
	u32 mark;
	/* Where the number is of the copy of the code's instructions that the frame runs; in a code object, where the address of the list of
	 * copies is, and the first of them. `copies` is 0 if there are none. */
	u32 copy;
	u32 copies;
	u32 bytecode;
	/* In a code object: its size as far as needed, and its fields. */
	u32 code_bytes;
	u32 name;
	u32 file;
	u32 first_line;
	u32 line_table;
	/* In a string: its length in characters, the word that tells their size, by how many bits that is further left than enum python_string
	 * says, and the characters if they are all ASCII, or else. */
	u32 length;
	u32 kind;
	u32 kind_shift;
	u32 ascii_data;
	u32 data;
	/* In an object of bytes: their number, and the bytes. */
	u32 bytes_length;
	u32 bytes;
	/* Number of keys whose values are at `values_at`. */
	u32 value_count;
	/* How far below the thread pointer the address is that is the thread's id for pthreads: 0 on x86-64. */
	u32 id_below;
	u32 unused;
};

/* Bits of the word of a string that tells the size of its characters, in bytes, and that they are all ASCII. */
enum python_string {
	PYTHON_KIND_SHIFT = 2,
	PYTHON_KIND_MASK = 7,
	PYTHON_ASCII_BIT = 1 << 6,
};

/* A code object. Written once, `is_read` last. */
struct python_code {
	u64 code;
	u32 instance;
	/* Set once the record can be read. */
	u32 is_read;
	u32 first_line;
	u32 unused;
	/* The strings, and the table of lines: their addresses identify the code object. */
	u64 name_at;
	u64 file_at;
	u64 line_table;
	/* Words that tell the size of characters, and the number of them all. */
	u32 name_kind;
	u32 file_kind;
	u32 name_length;
	u32 file_length;
	/* Index in `python_lines` of the table of lines, and its bytes, of which there can be none; or PYTHON_NO_LINES. */
	u32 lines_at;
	u32 lines_bytes;
	u8 name[PYTHON_NAME_BYTES];
	u8 file[PYTHON_FILE_BYTES];
};

enum python_lines_at {
	/* The table is too large, could not be read, or there was no room. */
	PYTHON_NO_LINES = 0xffffffff,
};

/* Key of the numbers of these records. */
struct python_code_key {
	u64 code;
	u64 instance;
};

enum python_end {
	/* The chain has all of the thread's frames. */
	PYTHON_WHOLE = 0,
	PYTHON_DEPTH_LIMIT = 1,
	PYTHON_UNREADABLE = 2,
};

/* A chain of Python frames, from the innermost one. Written once. */
struct python_chain {
	/* Index of its first frame in `python_frames`, and their number. */
	u32 frames_at;
	u16 frame_count;
	/* enum python_end. */
	u8 end;
	u8 unused;
};

/*
 * A stored frame: the number of its code record, or PYTHON_NO_CODE for what only marks a frame of the main function without Python
 * frames of its own; PYTHON_IS_ENTRY if it is the outermost of one; and the instruction, as an offset.
 */
enum python_frame_layout {
	PYTHON_CODE_SHIFT = 32,
	PYTHON_ENTRY_SHIFT = 31,
};

/* The instruction of a frame that has not begun. */
enum python_instruction {
	PYTHON_NOT_BEGUN = 0x7fffffff,
};

enum python_code_number {
	/* A function that is not known. */
	PYTHON_UNKNOWN_CODE = 0,
	PYTHON_NO_CODE = 0xffffffff,
};

/* Numbers of records and frames reserved; can exceed the capacities. */
struct python_usage {
	u64 codes;
	u64 chains;
	u64 frames;
	/* Words of tables of lines. */
	u64 lines;
};

_Static_assert(sizeof(struct python_layout) == 208, "user space writes it as 26 words");
_Static_assert(sizeof(struct python_code) == 392, "user space reads it as 49 words");

#endif
