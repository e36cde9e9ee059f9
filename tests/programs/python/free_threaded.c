/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A program with the structures of CPython 3.15 without a GIL, which no distribution packages: objects with 16 more
 * bytes, tagged references, bytecode copied for threads, a thread-local state, and a frame that calls all others. It
 * runs no Python. From "ready" to "done", `inner` and `outer` allocate: 400000 bytes in the first thread, 400001 in one
 * that runs copies of their bytecode, 400002 in one whose list of them is damaged. Before, `again` calls `inner` via C.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct object {
	uint64_t thread;
	uint32_t flags, local;
	uint64_t shared;
	const struct type *type;
};

struct type {
	struct object head;
	int64_t length;
	const char *name;
	int64_t basic_size, item_size;
	void (*dealloc)(void *);
};

static void dealloc(void *object)
{
	free(object);
}

#define TYPE(variable, its_name, size) const struct type variable = { .name = its_name, .basic_size = size, .dealloc = dealloc }

TYPE(PyCode_Type, "code", 232);
TYPE(PyFrame_Type, "frame", 1);
TYPE(PyUnicode_Type, "str", 80);
TYPE(PyBytes_Type, "bytes", 49);

struct text {
	struct object head;
	int64_t length, hash;
	/* Compact, ASCII: characters of one byte. */
	uint64_t state;
	char ascii[32];
};

#define TEXT(its_text) { .head.type = &PyUnicode_Type, .length = sizeof(its_text) - 1, .state = 1 << 8 | 1 << 11 | 1 << 12, .ascii = its_text }

struct bytes {
	struct object head;
	int64_t length, hash;
	uint8_t data[8];
};

enum { INSTRUCTIONS = 8, COPIES = 2 };

struct copies {
	int64_t count;
	uint16_t *copies[COPIES];
};

struct code {
	struct object head;
	uint8_t before[52];
	int32_t first_line;
	uint8_t between[40];
	struct text *file;
	void *short_name;
	struct text *name;
	struct bytes *line_table;
	uint8_t behind[64];
	struct copies *copies;
	uint16_t bytecode[INSTRUCTIONS];
};

struct frame {
	uint64_t code;
	struct frame *back;
	void *objects[5];
	uint16_t *instruction;
	void *stack;
	int32_t copy;
	uint16_t return_offset;
	uint8_t owner, visited;
	void *locals[2];
};

struct state {
	uint8_t before[72];
	struct frame *frame, *base;
	uint8_t between[88];
	uint64_t id;
	uint8_t behind[72];
	void *chunk;
};

_Static_assert(offsetof(struct code, first_line) == 84 && offsetof(struct code, copies) == 224, "as in 3.15");
_Static_assert(offsetof(struct frame, owner) == 78 && offsetof(struct state, id) == 176, "as in 3.15");

/* _Py_DebugOffsets of 3.15, by which a build describes its structures. */
uint64_t _PyRuntime[200] = {
	0x7970677562656478, 0x030f01f0, 1,
	[208 / 8] = 72, [216 / 8] = 80, [240 / 8] = 176, [256 / 8] = 256,
	[320 / 8] = 8, [328 / 8] = 0, [336 / 8] = 56, [352 / 8] = 78, [368 / 8] = 72,
	[384 / 8] = 128, [400 / 8] = 144, [408 / 8] = 152, [416 / 8] = 84, [448 / 8] = 232, [456 / 8] = 224,
	[472 / 8] = 24, [696 / 8] = 32, [704 / 8] = 48, [720 / 8] = 48, [728 / 8] = 32, [736 / 8] = 56,
};
const uint64_t Py_Version = 0x030f01f0;

static __thread struct state *noted;

struct state *PyGILState_GetThisThreadState(void)
{
	return noted;
}

/* Instructions 0 to 3 are on the first line of a function, 4 to 7 on the next. */
static struct bytes lines = { .head.type = &PyBytes_Type, .length = 4, .data = { 0xeb, 0, 0xeb, 2 } };
static struct text file = TEXT("/srv/made.py");
static struct text names[] = { TEXT("inner"), TEXT("outer"), TEXT("again") };
static struct code codes[3];
static struct copies copies[3], damaged;

enum { INNER, OUTER, AGAIN, REFERENCE_TAG = 1, OWNED_BY_INTERPRETER = 3 };

static void begin_code(int number, int first_line)
{
	struct code *code = &codes[number];

	*code = (struct code){ .head.type = &PyCode_Type, .first_line = first_line, .file = &file, .name = &names[number], .line_table = &lines };
	copies[number] = (struct copies){ COPIES, { code->bytecode, calloc(INSTRUCTIONS, sizeof(uint16_t)) } };
	code->copies = &copies[number];
}

/* Returns a frame at an instruction, of a thread that runs a copy of the bytecode. */
static struct frame frame_of(int number, int instruction, int copy)
{
	return (struct frame){ .code = (uint64_t)&codes[number] | REFERENCE_TAG, .instruction = copies[number].copies[copy] + instruction, .copy = copy };
}

/* Runs the frames up to `last`, each called by the next; the innermost one calls `called`. */
__attribute__((noinline)) long _PyEval_EvalFrameDefault(struct frame *innermost, struct frame *last, void (*called)(long), long argument)
{
	struct frame entry = { .back = noted->frame, .owner = OWNED_BY_INTERPRETER };

	last->back = &entry;
	noted->frame = innermost;
	called(argument);
	noted->frame = entry.back;
	return argument;
}

long PyEval_EvalFrameEx(long frame)
{
	return frame;
}

__attribute__((noinline)) static void allocate(long bytes)
{
	*(volatile char *)malloc(bytes) = 1;
}

/* Calls Python from C. */
__attribute__((noinline)) static void run_functions(long bytes)
{
	int copy = bytes != 400000;
	struct frame inner = frame_of(INNER, 5, copy), outer = frame_of(OUTER, 2, copy);

	inner.back = &outer;
	_PyEval_EvalFrameDefault(&inner, &outer, allocate, bytes);
}

static void *run_thread(void *bytes)
{
	struct frame base = { .owner = OWNED_BY_INTERPRETER };
	struct state state = { .frame = &base, .base = &base, .id = pthread_self() };
	struct frame again = frame_of(AGAIN, 4, (long)bytes != 400000);

	noted = &state;
	_PyEval_EvalFrameDefault(&again, &again, run_functions, (long)bytes);
	return NULL;
}

int main(void)
{
	pthread_t thread;

	begin_code(INNER, 10);
	begin_code(OUTER, 20);
	begin_code(AGAIN, 30);
	puts("ready");
	fflush(stdout);
	getchar();
	run_thread((void *)400000);
	if (pthread_create(&thread, NULL, run_thread, (void *)400001) || pthread_join(thread, NULL))
		return 1;
	damaged = copies[OUTER];
	damaged.copies[0] = NULL;
	codes[OUTER].copies = &damaged;
	if (pthread_create(&thread, NULL, run_thread, (void *)400002) || pthread_join(thread, NULL))
		return 1;
	puts("done");
	fflush(stdout);
	getchar();
	return 0;
}
