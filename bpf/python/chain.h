/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Python frames: CPython's chain of the functions that the current thread runs, read when the thread allocates. User
 * space places them between the native frames of the interpreter (crates/leak-report/src/model/leak/python.rs).
 *
 * All memory of the interpreter is untrusted: unreadable or implausible data ends the chain. The thread state is that
 * of the current thread, whether or not it may run Python code now: no other thread changes it.
 *
 * A chain that was found before is recognized by its hash. The hash includes the address of each code object and its
 * version, the number of code objects that have ended at addresses like it, so another code object at the same address
 * makes another hash (python/codes.h).
 */
#pragma once

#include "config.h"
#include "hash.h"
#include "kernel.h"
#include "maps.h"
#include "process/processes.h"
#include "python/codes.h"
#include "python/walk.h"
#include "store/scratch.h"

/* Result for a chain that was not found before and has to be stored. */
#define NEW_CHAIN (~0U)
/*
 * Maximum number of frames that are read one by one, as they are outside the window: those of generators, and in older
 * versions all.
 */
#define PYTHON_MAX_OUTSIDE 128

/* From the kernel's arch/x86/include/asm/processor.h and arch/arm64/include/asm/processor.h: the fields needed here. */
struct thread_struct___pointer {
	unsigned long fsbase;
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));

struct task_struct___pointer {
	struct thread_struct___pointer thread;
} __attribute__((preserve_access_index));

/*
 * Returns the thread pointer, by which the current thread finds its own variables. On arm64, where a program sets it by
 * itself, the kernel knows it since the thread was created, or first stopped running.
 */
static __always_inline u64 thread_pointer(void)
{
	struct task_struct___pointer *task = (void *)bpf_get_current_task_btf();

	return task->thread.THREAD_POINTER;
}

/*
 * Reads a thread state into `walk->state`. Returns false if it is not that of the current thread, whose thread pointer
 * is `thread`.
 */
static __always_inline bool read_thread_state(struct python_walk *walk, struct python_layout *layout, u64 state, u64 thread)
{
	if (!state || !read_python(walk->state, layout->state_bytes, PYTHON_STATE_BYTES, state))
		return false;
	return python_word(walk->state, layout->thread_id, PYTHON_STATE_BYTES - 1) == thread - layout->id_below;
}

/* Returns the `value_at` that leads to the states of threads (enum python_noted); 0 if it is not there yet. */
static __always_inline u64 find_noted(struct python_layout *layout)
{
	struct {
		u32 is_made;
		u32 number;
	} key;
	u64 at;

	if (layout->noted_by == PYTHON_NOTED_FIXED)
		return layout->noted;
	if (layout->noted_by != PYTHON_NOTED_KEY)
		return bpf_probe_read_user(&at, sizeof(at), (void *)layout->noted) ? 0 : at;
	if (bpf_probe_read_user(&key, sizeof(key), (void *)(layout->runtime + layout->key - 4)) || !key.is_made ||
	    key.number >= layout->value_count)
		return 0;
	return layout->values_at + (u64)key.number * layout->value_bytes - layout->id_below;
}

/* Returns the address of the state that the thread itself has noted; 0 if there is none. Overwrites `walk->state`. */
static __always_inline u64 noted_thread_state(struct python_walk *walk, struct python_layout *layout, u64 thread)
{
	/* As in glibc's `struct tlsdesc_dynamic_arg`. */
	struct {
		u64 object;
		u64 at;
	} *variable = (void *)walk->state;
	u64 at = layout->value_at;
	u64 from = thread, state;

	if (!at) {
		at = find_noted(layout);
		if (!at)
			return 0;
		layout->value_at = at;
	}
	variable->object = 0;
	if (layout->noted_by == PYTHON_NOTED_OBJECT) {
		variable->object = at;
		at = layout->variable;
	} else if (layout->noted_by == PYTHON_NOTED_DESCRIPTOR && at >= PYTHON_STATIC_BYTES) {
		if (bpf_probe_read_user(variable, sizeof(*variable), (void *)at))
			return 0;
		at = variable->at;
	}
	if (variable->object) {
		/*
		 * glibc's `dtv` has an entry for each object, which begins with the address of the thread's variables
		 * of that object.
		 */
		if (bpf_probe_read_user(&from, sizeof(from), (void *)(thread + layout->objects)) ||
		    bpf_probe_read_user(&from, sizeof(from), (void *)(from + 16 * variable->object)))
			return 0;
	}
	return bpf_probe_read_user(&state, sizeof(state), (void *)(from + at)) ? 0 : state;
}

/*
 * Reads the current thread's state. Before Python 3.12, a thread notes its state in the first interpreter only: if
 * there are others, only the state of the thread that runs Python code is known.
 */
static __always_inline bool find_thread_state(struct python_walk *walk, struct python_layout *layout, u64 thread)
{
	u64 next, current, noted;

	if (layout->current) {
		u32 bytes = layout->current - layout->next_interpreter + 8;

		if (!read_python(walk->runtime, bytes, PYTHON_RUNTIME_BYTES, layout->runtime + layout->next_interpreter))
			return false;
		next = *(u64 *)walk->runtime;
		current = python_word(walk->runtime, bytes - 8, PYTHON_RUNTIME_BYTES - 1);
		if (read_thread_state(walk, layout, current, thread))
			return true;
		if (next > 1)
			return false;
	}
	noted = noted_thread_state(walk, layout, thread);
	if (!noted || read_thread_state(walk, layout, noted, thread))
		return noted;
	/*
	 * An interpreter that was ended and begun again has another key; one that was loaded again is at another place.
	 */
	layout->value_at = 0;
	return false;
}

/* Returns whether the next frame is in the window. */
static __always_inline bool is_in_python_window(struct python_walk *walk, struct python_layout *layout)
{
	u64 offset = walk->at - walk->low;

	return offset < walk->bytes && offset + layout->frame_bytes <= walk->bytes;
}

/* A block of frames (`_PyStackChunk`): the one before it, and its size. */
struct python_chunk {
	u64 previous;
	u64 bytes;
};

/* Goes to the previous block of frames if the next frame is in it; returns whether it is. */
static __always_inline bool is_in_previous_chunk(struct python_walk *walk)
{
	struct python_chunk chunk;

	if (!walk->knows_previous) {
		walk->knows_previous = true;
		walk->previous_bytes = 0;
		if (!bpf_probe_read_user(&chunk, sizeof(chunk), (void *)walk->chunk)) {
			walk->previous = chunk.previous;
			if (chunk.previous && !bpf_probe_read_user(&chunk, sizeof(chunk), (void *)chunk.previous))
				walk->previous_bytes = chunk.bytes;
		}
	}
	if (walk->at - walk->previous >= walk->previous_bytes)
		return false;
	walk->chunk = walk->previous;
	walk->knows_previous = false;
	walk->low = ~0ULL;
	return true;
}

/*
 * Reads the end of the block of frames up to the next frame, as much as the window has room for; callers are at lower
 * addresses. Returns false if the frame is not in the block.
 */
static __always_inline bool read_python_window(struct python_walk *walk, struct python_layout *layout)
{
	u64 bytes;

	if (!walk->chunk)
		return false;
	if ((walk->at < walk->chunk || walk->at > walk->low) && !is_in_previous_chunk(walk))
		return false;
	bytes = walk->at + layout->frame_bytes - walk->chunk;
	if (bytes > PYTHON_WINDOW_BYTES)
		bytes = PYTHON_WINDOW_BYTES;
	walk->low = walk->at + layout->frame_bytes - bytes;
	walk->bytes = bytes;
	if (read_python(walk->window, bytes, PYTHON_WINDOW_BYTES, walk->low))
		return true;
	walk->bytes = 0;
	walk->chunk = 0;
	return false;
}

/* Adds a frame to the chain, and to its hash. */
static __always_inline void add_python_frame(struct python_walk *walk, u64 code, u64 instruction)
{
	u32 number = walk->frame_count & (PYTHON_FRAMES - 1);
	u64 version = python_versions[python_version_of(code)];

	walk->codes[number] = code;
	walk->instructions[number] = instruction;
	walk->frame_count++;
	walk->hash = mix(mix(walk->hash, code), (version << 32) ^ (u32)instruction);
}

/* Ends a group: marks its last frame as the entry, or adds a mark alone if the eval frame runs no function. */
static __always_inline void end_python_group(struct python_walk *walk)
{
	u32 last = (walk->frame_count - 1) & (PYTHON_FRAMES - 1);

	if (walk->frame_count && !(walk->codes[last] & PYTHON_IS_ENTRY)) {
		walk->codes[last] |= PYTHON_IS_ENTRY;
		walk->hash = mix(walk->hash, PYTHON_IS_ENTRY);
		return;
	}
	add_python_frame(walk, PYTHON_IS_ENTRY, 0);
}

/*
 * Translates the instruction of a frame that runs a copy of its code's instructions into the first copy, which is in
 * the code object; returns 0 if that is unknown. Without a global lock, each thread but the first has its own copies.
 * Not static: verified once, by itself.
 */
__noinline u64 python_instruction_of_copy(struct python_layout *layout, u64 code, u64 instruction, u32 copy)
{
	struct {
		u64 count;
		u64 first;
	} copies;
	u64 at, start;

	if (!layout || bpf_probe_read_user(&at, sizeof(at), (void *)(code + layout->copies)) ||
	    bpf_probe_read_user(&copies, sizeof(copies), (void *)at))
		return 0;
	/* Another thread may have made room for more copies: the list that was read is gone then. */
	if (copies.first != code + layout->bytecode || copy >= copies.count ||
	    bpf_probe_read_user(&start, sizeof(start), (void *)(at + 8 + 8 * (u64)copy)))
		return 0;
	return instruction - start + code + layout->bytecode;
}

/*
 * Reads the frame at `walk->at`, and goes to its caller. Returns whether there is one. Not static: verified once, by
 * itself.
 */
__noinline bool read_python_frame(struct python_walk *walk, struct python_layout *layout)
{
	u64 code, instruction;
	u8 *frame, mark;

	if (!walk || !layout || !walk->at)
		return false;
	if (walk->at == walk->base) {
		walk->at = 0;
		return false;
	}
	frame = walk->frame;
	if (walk->frame_count >= PYTHON_FRAMES) {
		walk->end = PYTHON_DEPTH_LIMIT;
		return false;
	}
	if (is_in_python_window(walk, layout) || read_python_window(walk, layout)) {
		u64 offset = walk->at - walk->low;

		OPAQUE(offset);
		frame = walk->window + (offset & (PYTHON_WINDOW_BYTES - 1));
	} else if (walk->outside++ >= PYTHON_MAX_OUTSIDE) {
		walk->end = PYTHON_DEPTH_LIMIT;
		return false;
	} else if (!read_python(walk->frame, layout->frame_bytes, PYTHON_FRAME_BYTES, walk->at)) {
		walk->end = PYTHON_UNREADABLE;
		return false;
	}
	mark = python_byte(frame, layout->mark, PYTHON_FRAME_BYTES - 1);
	walk->at = python_word(frame, layout->back, PYTHON_FRAME_BYTES - 1);
	if (layout->entry == PYTHON_ENTRY_SHIM && mark >= PYTHON_OWNED_BY_C) {
		end_python_group(walk);
		return true;
	}
	code = python_word(frame, layout->code, PYTHON_FRAME_BYTES - 1) & ~(PYTHON_IS_ENTRY | PYTHON_TAG);
	instruction = python_word(frame, layout->instruction, PYTHON_FRAME_BYTES - 1);
	if (layout->copies) {
		u32 copy = python_half(frame, layout->copy, PYTHON_FRAME_BYTES - 1);

		if (copy)
			instruction = python_instruction_of_copy(layout, code, instruction, copy);
	}
	if (layout->is_address)
		instruction -= code;
	else
		/* -1 at first. */
		instruction = (s32)instruction < 0 ? PYTHON_NOT_BEGUN : (u32)instruction;
	/* No code object is that large. */
	if (!code || instruction > PYTHON_NOT_BEGUN) {
		walk->end = PYTHON_UNREADABLE;
		return false;
	}
	if (layout->entry == PYTHON_ENTRY_EVERY || (layout->entry == PYTHON_ENTRY_FLAG && mark))
		code |= PYTHON_IS_ENTRY;
	add_python_frame(walk, code, instruction);
	return true;
}

/*
 * Reads the chain of Python frames of the process and thread of scratch `key`. Returns its number if it was found
 * before, 0 if there is none, or NEW_CHAIN: then the chain is in the `python_walks` entry of `key`. Not static:
 * verified once, by itself.
 */
__noinline u32 find_python_chain(u32 key)
{
	struct scratch *scratch = bpf_map_lookup_elem(&scratches, &key);
	struct python_walk *walk = bpf_map_lookup_elem(&python_walks, &key);
	struct python_layout *layout;
	u32 instance;
	u64 recent;

	if (!scratch || !walk)
		return 0;
	instance = instance_of(scratch->wanted.owner);
	layout = python_layout_at(slot_of(scratch->wanted.owner));
	if (*(volatile u64 *)&layout->instance != instance)
		return 0;
	if (!find_thread_state(walk, layout, thread_pointer()))
		return 0;
	walk->at = python_word(walk->state, layout->frame, PYTHON_STATE_BYTES - 1);
	if (layout->is_indirect && bpf_probe_read_user(&walk->at, 8, (void *)(walk->at + layout->indirect)))
		return 0;
	if (!walk->at)
		return 0;
	walk->hash = mix(0, instance);
	walk->frame_count = 0;
	walk->outside = 0;
	walk->end = PYTHON_WHOLE;
	walk->base = layout->base ? python_word(walk->state, layout->base, PYTHON_STATE_BYTES - 1) : 0;
	walk->chunk = layout->chunk ? python_word(walk->state, layout->chunk, PYTHON_STATE_BYTES - 1) : 0;
	walk->knows_previous = false;
	walk->low = ~0ULL;
	walk->bytes = 0;
	/* Frames without a function take one more step each. */
	for (u32 step = 0; step < 2 * PYTHON_FRAMES; step++)
		if (!read_python_frame(walk, layout))
			break;
	if (walk->at && walk->end == PYTHON_WHOLE)
		walk->end = PYTHON_DEPTH_LIMIT;
	walk->hash = mix(walk->hash, walk->end);
	recent = *(volatile u64 *)recent_chain(walk->hash);
	if (recent && !((recent ^ walk->hash) & ~(u64)(PYTHON_CHAINS - 1)))
		return recent & (PYTHON_CHAINS - 1);
	return NEW_CHAIN;
}
