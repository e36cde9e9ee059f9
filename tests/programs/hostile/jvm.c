/*
 * Claims to be a JVM (the test names it libjvm.so) that keeps frame pointers, with wrong tables of its flags: they are
 * endless, lead nowhere, or claim to be as large as memory. With "right", the tables are correct; with "off", they are
 * those of a JVM whose flag is not set.
 *
 * "ready", a line, 100 blocks, "done".
 */
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../handshake.h"
#include "../keep.h"

#define ENTRIES (1 << 15)

struct variable {
	const char *type, *field, *field_type;
	int32_t is_static;
	uint64_t offset;
	void *address;
};

struct type {
	const char *name, *base;
	int32_t is_oop, is_integer, is_unsigned;
	uint64_t size;
};

struct flag {
	void *value;
	const char *name;
	uint64_t more;
};

static char is_set = 1, other, interpreter[4096];
static struct flag flags[] = {
	{ &other, "UseOther", 0 },
	{ &is_set, "PreserveFramePointer", 0 },
};
static struct flag *first_flag = flags;
static uint64_t flag_count = 2;
/* Place of the interpreter, and heaps of code, one of which contains the interpreter. */
static struct queue {
	void *unused;
	char *buffer;
	int32_t size, limit;
} queue = { NULL, interpreter, 0, sizeof(interpreter) }, *code = &queue;
static struct heap {
	void *unused;
	char *low, *high;
} heaps[] = { { NULL, interpreter, interpreter + sizeof(interpreter) } }, *all_heaps[] = { heaps };
static struct array {
	int32_t length, capacity;
	struct heap **data;
} array = { 1, 1, all_heaps }, *heap_list = &array;
static struct variable variables[ENTRIES] = {
	{ "JVMFlag", "flags", "JVMFlag*", 1, 0, &first_flag },
	{ "JVMFlag", "numFlags", "size_t", 1, 0, &flag_count },
	{ "JVMFlag", "_name", "const char*", 0, offsetof(struct flag, name), NULL },
	{ "JVMFlag", "_addr", "void*", 0, offsetof(struct flag, value), NULL },
	{ "AbstractInterpreter", "_code", "StubQueue*", 1, 0, &code },
	{ "StubQueue", "_stub_buffer", "address", 0, offsetof(struct queue, buffer), NULL },
	{ "StubQueue", "_buffer_limit", "int", 0, offsetof(struct queue, limit), NULL },
	{ "CodeCache", "_heaps", "GrowableArray<CodeHeap*>*", 1, 0, &heap_list },
	{ "CodeHeap", "_memory", "VirtualSpace", 0, offsetof(struct heap, low), NULL },
	{ "VirtualSpace", "_low_boundary", "char*", 0, 0, NULL },
	{ "VirtualSpace", "_high_boundary", "char*", 0, sizeof(char *), NULL },
	{ "GrowableArray<int>", "_data", "int*", 0, offsetof(struct array, data), NULL },
	{ "GrowableArrayBase", "_len", "int", 0, offsetof(struct array, length), NULL },
};
static struct type types[ENTRIES] = { { "JVMFlag", NULL, 0, 0, 0, sizeof(struct flag) } };

struct variable *gHotSpotVMStructs = variables;
struct type *gHotSpotVMTypes = types;

static void break_tables(const char *how)
{
	if (strcmp(how, "off") == 0)
		is_set = 0;
	if (strcmp(how, "endless") == 0)
		for (int number = 1; number < ENTRIES; number++)
			variables[number].type = types[number].name = "Other";
	if (strcmp(how, "wild") == 0)
		gHotSpotVMStructs = (void *)0xffff800000001000;
	if (strcmp(how, "wild flags") == 0)
		first_flag = (void *)-64;
	if (strcmp(how, "wild value") == 0)
		flags[1].value = (void *)8;
	if (strcmp(how, "many") == 0)
		flag_count = UINT64_MAX;
	if (strcmp(how, "large") == 0)
		types[0].size = UINT64_MAX / 2;
	if (strcmp(how, "far") == 0)
		variables[2].offset = variables[3].offset = UINT64_MAX - 4;
	if (strcmp(how, "wild interpreter") == 0)
		code = (void *)0xffff800000001000;
	if (strcmp(how, "wild heaps") == 0)
		all_heaps[0] = (void *)-16;
	if (strcmp(how, "many heaps") == 0)
		array.length = -1;
	if (strcmp(how, "all heap") == 0)
		heaps[0] = (struct heap){ NULL, NULL, (void *)-1 };
	if (strcmp(how, "nameless") == 0)
		flags[0].name = flags[1].name = (void *)0x10;
}

NOINLINE static void leak(void)
{
	for (int number = 0; number < 100; number++)
		kept = malloc(64);
}

int main(int argc, char **argv)
{
	break_tables(argv[1]);
	mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	rendezvous("ready");
	leak();
	rendezvous("done");
	return 0;
}
