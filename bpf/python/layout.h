/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Types of Python frames (python/chain.h), shared by both sides like those of shared.h. */
#ifndef PYTHON_LAYOUT_H
#define PYTHON_LAYOUT_H

#include "shared.h"

enum python_limits {
	/* Maximum number of frames of a chain that are read; a power of two. */
	PYTHON_FRAMES = 256,
	/* Maximum bytes that are read of the interpreter, of a thread's state, of a frame and of a code object, to
	 * find their fields. */
	PYTHON_RUNTIME_BYTES = 1024,
	PYTHON_STATE_BYTES = 512,
	PYTHON_FRAME_BYTES = 128,
	PYTHON_CODE_BYTES = 256,
	/* Maximum bytes of the block of frames that are read at once; a power of two. */
	PYTHON_WINDOW_BYTES = 8192,
	/* Bytes that are kept of a function's name (the first ones) and of a file's name (the last ones). */
	PYTHON_NAME_BYTES = 96,
	PYTHON_FILE_BYTES = 224,
	/* Maximum size of a line table that is kept, in bytes. */
	PYTHON_LINES_BYTES = 1 << 16,
	/* Number of versions, which tell apart code objects that follow each other at one address; a power of two. */
	PYTHON_VERSIONS = 4096,
	/* Number of places for chains that were found last; a power of two. */
	PYTHON_RECENT = 1 << 14,
	/* Maximum number of chains; number 0 is none. */
	PYTHON_CHAINS = 1 << 16,
};

/* How an interpreter marks a group: the Python frames that one eval frame runs. The entry is the outermost of them. */
enum python_entry {
	/* Each Python frame is a group. */
	PYTHON_ENTRY_EVERY = 0,
	/* The entry has a byte that is not 0. */
	PYTHON_ENTRY_FLAG = 1,
	/* Behind the entry is a frame without a function, whose owner is PYTHON_OWNED_BY_C or a greater number. */
	PYTHON_ENTRY_SHIM = 2,
};

enum python_owner {
	PYTHON_OWNED_BY_C = 3,
};

/* How a thread's own state is found: source and meaning of `value_at`. */
enum python_noted {
	/* Distance from the thread pointer to the value of a thread-specific key, whose number is in _PyRuntime. */
	PYTHON_NOTED_KEY = 0,
	/* Distance from the thread pointer to a variable of each thread: `noted` itself. */
	PYTHON_NOTED_FIXED = 1,
	/* Distance from the thread pointer to that variable: the word at `noted`, which the loader writes. */
	PYTHON_NOTED_DISTANCE = 2,
	/* Number of an object, the word at `noted`: the variable is `variable` bytes behind the start of the
	 * thread's variables of it. */
	PYTHON_NOTED_OBJECT = 3,
	/* The word at `noted`, which the loader writes. Below PYTHON_STATIC_BYTES, it is the distance from the
	 * thread pointer; else the address of two words: an object's number, and the variable's offset in the
	 * thread's variables of that object. AArch64. */
	PYTHON_NOTED_DESCRIPTOR = 4,
};

enum python_static {
	/* Bound on the distance of a variable from the thread pointer. Programs on Linux have nothing at addresses
	 * below it. */
	PYTHON_STATIC_BYTES = 1 << 20,
};

/* Location of an interpreter's frames: offsets in its structures, in bytes. By process slot. */
struct python_layout {
	/* Instance whose interpreter it is; written last. */
	u64 instance;
	/* AVMA of _PyRuntime and of PyCode_Type. */
	u64 runtime;
	u64 code_type;
	/* Way to the thread's state (enum python_noted). `value_at` is 0 until it is known: the key may have yet to
	 * be made. */
	u64 value_at;
	u64 noted;
	/* enum python_noted; distance from the thread pointer to the address of the table of objects' variables;
	 * offset in those of the object. */
	u32 noted_by;
	u32 objects;
	u32 variable;
	/* Offset of the type in a Python object. */
	u32 object_type;
	/* Distance from the thread's id to the value of key 0, and from one key's value to the next one's. */
	u32 values_at;
	u32 value_bytes;
	/* In _PyRuntime: the key, with a flag before it that is set once the key is made; before Python 3.12, the
	 * number of the next interpreter, and behind it the state of the thread that runs Python code (`current`), 0
	 * in later versions. */
	u32 key;
	u32 next_interpreter;
	u32 current;
	/* In the thread's state: the bytes that are read of it, the thread's id, the frame, the newest block of
	 * frames, and the base frame, which calls all others and has no function. `chunk` and `base` are 0 if there
	 * is none. */
	u32 state_bytes;
	u32 thread_id;
	u32 frame;
	u32 chunk;
	u32 base;
	/* Set if `frame` points to a structure that has the frame's address, at offset `indirect`. */
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
	/* In a frame, the number of the copy of the code's instructions that it runs; in a code object, the address
	 * of the list of copies, and the first copy. `copies` is 0 if there are none. */
	u32 copy;
	u32 copies;
	u32 bytecode;
	/* In a code object: the bytes that are read of it, and its fields. */
	u32 code_bytes;
	u32 name;
	u32 file;
	u32 first_line;
	u32 line_table;
	/* In a string: its length in characters; the word that has their size, and by how many bits its fields are
	 * further left than enum python_string says; the characters if all are ASCII, and if not. */
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
	/* Distance from the thread's id for pthreads, which is an address, up to the thread pointer: 0 on x86-64. */
	u32 id_below;
	u32 unused;
};

/* Bits of the word of a string that has the size of its characters, in bytes, and says whether all are ASCII. */
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
	/* Addresses of the strings and of the line table, which identify the code object. */
	u64 name_at;
	u64 file_at;
	u64 line_table;
	/* Words that have the size of the characters, and the numbers of all characters. */
	u32 name_kind;
	u32 file_kind;
	u32 name_length;
	u32 file_length;
	/* Index of the line table in `python_lines`, or PYTHON_NO_LINES; and its size in bytes, which can be 0. */
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
 * A stored frame: the number of its code record, or PYTHON_NO_CODE for the mark of an eval frame that runs no function;
 * a bit that is set for the entry of a group; and the instruction, as an offset.
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
	/* Words of line tables. */
	u64 lines;
};

_Static_assert(sizeof(struct python_layout) == 208, "user space writes it as 26 words");
_Static_assert(sizeof(struct python_code) == 392, "user space reads it as 49 words");

#endif
