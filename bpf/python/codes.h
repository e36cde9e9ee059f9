/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of code objects, and of chains of Python frames.
 *
 * A running code object cannot end, so its record is made when a chain first has it. Many code objects live for
 * milliseconds (the body of a module, of a class), and their memory is used again at once: a probe at their end keeps a
 * record from standing for the next one at the address.
 */
#pragma once

#include "hash.h"
#include "kernel.h"
#include "maps.h"
#include "process/pids.h"
#include "process/processes.h"
#include "python/walk.h"
#include "seam.h"
#include "store/scratch.h"

static __always_inline struct python_layout *python_layout_at(u32 slot)
{
	return &python_layouts[slot & (MAX_PROCESSES - 1)];
}

/*
 * Returns the word for the chains with a hash among those found last. Its high bits are those of the hash, its low ones
 * the number of the chain.
 */
static __always_inline u64 *recent_chain(u64 hash)
{
	return &python_recent[hash & (PYTHON_RECENT - 1)];
}

/* Returns the word at an offset, rounded down to a multiple of 8, of a buffer; `mask` is the buffer's size less 1. */
static __always_inline u64 python_word(u8 *from, u32 at, u32 mask)
{
	at &= mask & ~7U;
	OPAQUE(at);
	at &= mask & ~7U;
	return *(stack_slot *)(from + at);
}

/* Returns 4 bytes, otherwise as `python_word`. */
static __always_inline u32 python_half(u8 *from, u32 at, u32 mask)
{
	return python_word(from, at, mask) >> 8 * (at & 4);
}

static __always_inline u8 python_byte(u8 *from, u32 at, u32 mask)
{
	OPAQUE(at);
	return from[at & mask];
}

/* Reads `bytes` bytes of user memory, at most `most`. Returns false if they are more, or cannot be read. */
static __always_inline bool read_python(void *to, u64 bytes, u64 most, u64 from)
{
	OPAQUE(bytes);
	if (bytes > most)
		return false;
	return !bpf_probe_read_user(to, bytes, (void *)from);
}

/* Returns the index in `python_versions` for the code objects at an address. */
static __always_inline u32 python_version_of(u64 code)
{
	return mix(0, code & ~PYTHON_IS_ENTRY) >> 40 & (PYTHON_VERSIONS - 1);
}

static __always_inline struct python_code *python_code_at(u32 number)
{
	struct python_code *all = python_codes;

	OPAQUE(all);
	return &all[number & python_code_mask];
}

/*
 * Reads the characters of a string, at most `most` bytes of them: the last ones if `ends`. Returns false if they cannot
 * be read.
 */
static __always_inline bool read_python_text(struct python_layout *layout, u64 at, u8 *to, u64 most, bool ends, u32 *kind,
					     u32 *length)
{
	u64 count, bytes, from;

	if (bpf_probe_read_user(kind, sizeof(*kind), (void *)(at + layout->kind)) ||
	    bpf_probe_read_user(&count, sizeof(count), (void *)(at + layout->length)))
		return false;
	*kind >>= layout->kind_shift & 31;
	*length = count;
	from = at + (*kind & PYTHON_ASCII_BIT ? layout->ascii_data : layout->data);
	bytes = (u64)*length * (*kind >> PYTHON_KIND_SHIFT & PYTHON_KIND_MASK);
	if (bytes > most) {
		if (ends)
			from += bytes - most;
		bytes = most;
	}
	OPAQUE(bytes);
	if (bytes > most)
		return false;
	return bytes == 0 || !bpf_probe_read_user(to, bytes, (void *)from);
}

/* Stores the line table of a code object, as the object may be gone later. */
static __always_inline void keep_python_lines(struct python_layout *layout, struct python_code *record)
{
	u64 bytes, words, at = python_usage.lines;
	u64 *store = python_lines;

	record->lines_at = PYTHON_NO_LINES;
	if (bpf_probe_read_user(&bytes, sizeof(bytes), (void *)(record->line_table + layout->bytes_length)) ||
	    bytes > PYTHON_LINES_BYTES)
		return;
	words = (bytes + 7) / 8;
	if (at + words > python_line_mask)
		return;
	at = __sync_fetch_and_add(&python_usage.lines, words);
	if (at + words > python_line_mask)
		return;
	OPAQUE(store);
	OPAQUE(bytes);
	if (bytes > PYTHON_LINES_BYTES || bpf_probe_read_user(&store[at & python_line_mask], bytes, (void *)(record->line_table + layout->bytes)))
		return;
	record->lines_at = at;
	record->lines_bytes = bytes;
}

/* State of adding a line table to a hash. */
struct python_lines_hash {
	u64 at;
	u64 left;
	u64 hash;
};

#define PYTHON_CODE_WORDS (PYTHON_CODE_BYTES / 8)

/*
 * Adds the next part of the line table, which is read into `walk->code`. Returns whether there is more. Not static:
 * verified once, by itself.
 */
__noinline bool mix_python_lines(struct python_walk *walk, struct python_lines_hash *lines)
{
	u64 bytes;
	u8 *code;

	if (!walk || !lines)
		return false;
	bytes = lines->left < PYTHON_CODE_BYTES ? lines->left : PYTHON_CODE_BYTES;
	code = walk->code;
	__builtin_memset(code, 0, PYTHON_CODE_BYTES);
	if (!read_python(code, bytes, PYTHON_CODE_BYTES, lines->at))
		return false;
#pragma clang loop unroll(disable)
	for (u32 number = 0; number < PYTHON_CODE_WORDS; number++)
		lines->hash = mix(lines->hash, *(stack_slot *)(code + 8 * number));
	lines->at += bytes;
	lines->left -= bytes;
	return lines->left;
}

/* Returns a hash of the content of a code object's record: names, lines, and the line table. */
static __always_inline u64 hash_of_python_code(struct python_walk *walk, struct python_layout *layout)
{
	struct python_code *made = &walk->made;
	struct python_lines_hash lines = { .at = made->line_table + layout->bytes };

	lines.hash = mix(made->instance, (u64)made->first_line << 32 | made->name_length);
#pragma clang loop unroll(disable)
	for (u32 number = 0; number < PYTHON_NAME_BYTES / 8; number++)
		lines.hash = mix(lines.hash, *(stack_slot *)(made->name + 8 * number));
	lines.hash = mix(lines.hash, (u64)made->name_kind << 32 | made->file_kind);
#pragma clang loop unroll(disable)
	for (u32 number = 0; number < PYTHON_FILE_BYTES / 8; number++)
		lines.hash = mix(lines.hash, *(stack_slot *)(made->file + 8 * number));
	if (bpf_probe_read_user(&lines.left, sizeof(lines.left), (void *)(made->line_table + layout->bytes_length)))
		lines.left = 0;
	lines.hash = mix(lines.hash, (u64)made->file_length << 32 | (u32)lines.left);
	if (!lines.left || lines.left > PYTHON_LINES_BYTES)
		return lines.hash;
	for (u32 part = 0; part < PYTHON_LINES_BYTES / PYTHON_CODE_BYTES; part++)
		if (!mix_python_lines(walk, &lines))
			break;
	return lines.hash;
}

/*
 * Returns the number of the record of the code object in `walk->made`; makes the record if there is none with the same
 * content.
 */
static __always_inline u32 record_python_code(struct python_walk *walk, struct python_layout *layout)
{
	u64 hash = hash_of_python_code(walk, layout);
	u32 *known = bpf_map_lookup_elem(&python_code_contents, &hash);
	u64 number = python_usage.codes;
	struct python_code *record;
	u32 made;

	if (known)
		return *known;
	if (number <= python_code_mask)
		number = __sync_fetch_and_add(&python_usage.codes, 1);
	if (number > python_code_mask)
		return PYTHON_UNKNOWN_CODE;
	record = python_code_at(number);
	bpf_probe_read_kernel(record, sizeof(*record), &walk->made);
	keep_python_lines(layout, record);
	/* A full barrier: a reader that sees this sees the other fields. */
	__sync_lock_test_and_set(&record->is_read, 1);
	made = number;
	bpf_map_update_elem(&python_code_contents, &hash, &made, BPF_ANY);
	return number;
}

/* Describes in `walk->made` the code object whose fields are in `walk->code`, except its texts. */
static __always_inline void describe_python_code(struct python_walk *walk, struct python_layout *layout, u32 instance, u64 code)
{
	struct python_code *made = &walk->made;

	__builtin_memset(made, 0, sizeof(*made));
	made->code = code;
	made->instance = instance;
	made->name_at = python_word(walk->code, layout->name, PYTHON_CODE_BYTES - 1);
	made->file_at = python_word(walk->code, layout->file, PYTHON_CODE_BYTES - 1);
	made->line_table = python_word(walk->code, layout->line_table, PYTHON_CODE_BYTES - 1);
	made->first_line = *(stack_slot *)(walk->code + (layout->first_line & (PYTHON_CODE_BYTES - 4)));
}

/* Returns whether a record is of the described code object, not of an earlier one at its address. */
static __always_inline bool is_python_code(struct python_code *record, struct python_code *made)
{
	return record->code == made->code && record->name_at == made->name_at && record->file_at == made->file_at &&
	       record->line_table == made->line_table && record->first_line == made->first_line;
}

/*
 * Returns the number of the record of a code object, which is made if there is none; PYTHON_UNKNOWN_CODE if it is no
 * code object.
 */
static __always_inline u32 number_of_python_code(struct python_walk *walk, struct python_layout *layout, u32 instance, u64 code)
{
	struct python_code_key key = { .code = code, .instance = instance };
	struct python_code *made = &walk->made;
	u32 *known, number;

	if (!read_python(walk->code, layout->code_bytes, PYTHON_CODE_BYTES, code) ||
	    python_word(walk->code, layout->object_type, PYTHON_CODE_BYTES - 1) != layout->code_type)
		return PYTHON_UNKNOWN_CODE;
	describe_python_code(walk, layout, instance, code);
	known = bpf_map_lookup_elem(&python_code_numbers, &key);
	if (known && is_python_code(python_code_at(*known), made))
		return *known;
	if (!read_python_text(layout, made->name_at, made->name, PYTHON_NAME_BYTES, false, &made->name_kind, &made->name_length) ||
	    !read_python_text(layout, made->file_at, made->file, PYTHON_FILE_BYTES, true, &made->file_kind, &made->file_length))
		return PYTHON_UNKNOWN_CODE;
	number = record_python_code(walk, layout);
	if (number != PYTHON_UNKNOWN_CODE)
		bpf_map_update_elem(&python_code_numbers, &key, &number, BPF_ANY);
	return number;
}

/* Handles the end of a code object. */
static __always_inline void python_code_ends(u64 code)
{
	u64 owner = owner_of_process(current_tgid());
	struct python_code_key key = { .code = code, .instance = instance_of(owner) };

	bpf_map_delete_elem(&python_code_numbers, &key);
	/* Also if it has no number: there may have been no room for it. */
	__sync_fetch_and_add(&python_versions[python_version_of(code)], 1);
}

/*
 * Finds the code record of a frame of `instance`. Returns the stored form of the frame (enum python_frame_layout). Not
 * static: verified once, by itself.
 */
__noinline u64 name_python_frame(struct python_walk *walk, struct python_layout *layout, u32 instance, u32 number)
{
	u32 of = PYTHON_NO_CODE;
	u64 code, is_entry;

	if (!walk || !layout)
		return 0;
	number &= PYTHON_FRAMES - 1;
	code = walk->codes[number];
	is_entry = code >> 63;
	if (code != PYTHON_IS_ENTRY)
		of = number_of_python_code(walk, layout, instance, code & ~PYTHON_IS_ENTRY);

	u64 stored = (u64)of << PYTHON_CODE_SHIFT | is_entry << PYTHON_ENTRY_SHIFT | walk->instructions[number];

	walk->stored[number] = stored;
	return stored;
}

/* Stores the chain that `walk` has. Returns its number, or 0 if there is no room for it. */
static __always_inline u32 add_python_chain(struct python_walk *walk, u64 hash)
{
	u64 frame_count = walk->frame_count;
	u64 number = python_usage.chains;
	u64 frames_at = python_usage.frames;
	u64 *store = python_frames;

	if (number >= PYTHON_CHAINS || frames_at + frame_count > python_frame_capacity)
		return 0;
	number = __sync_fetch_and_add(&python_usage.chains, 1);
	frames_at = __sync_fetch_and_add(&python_usage.frames, frame_count);
	if (number >= PYTHON_CHAINS || frames_at + frame_count > python_frame_capacity)
		return 0;
	OPAQUE(store);
	OPAQUE(frame_count);
	if (frame_count > PYTHON_FRAMES)
		return 0;
	bpf_probe_read_kernel(&store[frames_at & python_frame_mask], 8 * frame_count, walk->stored);

	struct python_chain *chain = &python_chains[number & python_chain_mask];
	u32 index = number;

	chain->frames_at = frames_at;
	chain->end = walk->end;
	chain->frame_count = frame_count;
	if (bpf_map_update_elem(&python_chain_numbers, &hash, &index, BPF_NOEXIST) == 0)
		return index;

	/* Another CPU has stored the same chain meanwhile: this one remains unused. */
	u32 *stored = bpf_map_lookup_elem(&python_chain_numbers, &hash);

	return stored ? *stored : 0;
}

/*
 * Returns the number of the chain that was read for scratch `key`, which is stored if it is new; 0 if there is no room
 * for it. Not static: verified once, by itself.
 */
__noinline u32 store_python_chain(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	struct python_walk *walk = bpf_map_lookup_elem(&python_walks, &key);
	struct python_layout *layout;
	u32 *known, number, instance;
	u64 hash;

	if (!scratch || !walk)
		return 0;
	instance = instance_of(scratch->wanted.owner);
	layout = python_layout_at(slot_of(scratch->wanted.owner));
	hash = mix(walk->end, instance);
	for (u32 frame = 0; frame < PYTHON_FRAMES && frame < walk->frame_count; frame++)
		hash = mix(hash, name_python_frame(walk, layout, instance, frame));
	known = bpf_map_lookup_elem(&python_chain_numbers, &hash);
	number = known ? *known : add_python_chain(walk, hash);
	if (number)
		*(volatile u64 *)recent_chain(walk->hash) = (walk->hash & ~(u64)(PYTHON_CHAINS - 1)) | number;
	return number;
}
