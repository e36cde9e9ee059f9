/*
 * Records what a process allocates, as an independent witness: it stands in front of the allocation functions, forwards
 * each call, and walks the stack of each success by _Unwind_Backtrace, the unwinder that carries C++
 * exceptions. A preload library; or, with WRAPPED, part of a static program, linked by -Wl,--wrap=malloc and
 * so on.
 *
 * SIGUSR1 starts the recording, SIGUSR2 ends it and writes the records to the file named by GROUND_TRUTH; each
 * prints that to standard output. They must be sent while the process waits in a read. With
 * GROUND_TRUTH_GATE set, the program need not cooperate: it says "ready" before main, and "done" when
 * it exits, and at each waits for a line from standard input; between the two it records.
 * While it records it allocates nothing; its tables are in its zeroed memory.
 *
 * Only the outermost call of a thread counts. The walk is made before the allocator is called: in its function
 * the return address may be that of a return probe, which no unwinder in the process can cross. For the same
 * reason this library must not be probed itself, and is not since it does not define free.
 *
 * Stacks start at the caller of the outermost function and are kept as a tree from the other end. The file has
 * a line for each frame, after that of its caller, which is 0 for the outermost:
 *   frame NUMBER CALLER MODULE ADDRESS
 * where MODULE is the one that was loaded then, and ADDRESS the return address less its load address, and a line
 * for each distinct stack:
 *   stack ALLOCATOR CALLS BYTES END FRAME
 * where END is "end" if the unwinder reached the end of the stack and "cut" if it did not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

#ifndef __GLIBC__
/* Declared by glibc, for which libgcc was compiled: the object that contains an address, and the object's CFI. */
struct dl_find_object {
	unsigned long long flags;
	void *start, *end;
	struct link_map *link_map;
	void *eh_frame_hdr;
	unsigned long long reserved[7];
};

struct wanted_object {
	uintptr_t address;
	struct dl_find_object *result;
};

static int find_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct wanted_object *wanted = argument;
	struct dl_find_object *result = wanted->result;
	int found = 0;

	(void)size;
	for (int index = 0; index < info->dlpi_phnum; index++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_GNU_EH_FRAME)
			result->eh_frame_hdr = (void *)start;
		if (segment->p_type != PT_LOAD || wanted->address - start >= segment->p_memsz)
			continue;
		result->start = (void *)start;
		result->end = (void *)(start + segment->p_memsz);
		found = 1;
	}
	return found;
}

int _dl_find_object(void *address, struct dl_find_object *result)
{
	struct wanted_object wanted = {(uintptr_t)address, result};

	memset(result, 0, sizeof(*result));
	return dl_iterate_phdr(find_object, &wanted) ? 0 : -1;
}
#endif

#ifdef WRAPPED
#define DECLARE(type, function, ...) type __real_##function(__VA_ARGS__)
#define NAME(function) __wrap_##function
#define REAL(function) __real_##function
#else
/* The next definition after this library's: glibc's, or that of an allocator the program is linked with. */
#define DECLARE(type, function, ...) static type (*real_##function)(__VA_ARGS__)
#define NAME(function) function
#define REAL(function) (real_##function ?: (find_real(), real_##function))
#endif

DECLARE(void *, malloc, size_t);
DECLARE(void *, calloc, size_t, size_t);
DECLARE(void *, realloc, void *, size_t);
DECLARE(int, posix_memalign, void **, size_t, size_t);
DECLARE(void *, aligned_alloc, size_t, size_t);
#ifndef WRAPPED
DECLARE(void *, reallocarray, void *, size_t, size_t);
DECLARE(void *, memalign, size_t, size_t);
DECLARE(void *, valloc, size_t);
DECLARE(void *, pvalloc, size_t);
#ifdef WITH_JEMALLOC
DECLARE(void *, mallocx, size_t, int);
DECLARE(void *, rallocx, void *, size_t, int);
#endif

/* A lookup that succeeds allocates nothing; one that fails would allocate the text of the error. */
static void find_real(void)
{
#define FIND(function) real_##function = (typeof(real_##function))dlsym(RTLD_NEXT, #function)
	FIND(malloc);
	FIND(calloc);
	FIND(realloc);
	FIND(posix_memalign);
	FIND(aligned_alloc);
	FIND(reallocarray);
	FIND(memalign);
	FIND(valloc);
	FIND(pvalloc);
#ifdef WITH_JEMALLOC
	FIND(mallocx);
	FIND(rallocx);
#endif
}
#endif

#ifndef MAX_DEPTH
#define MAX_DEPTH 600
#endif
#define RECORDS (1 << 18)
#define FRAMES (1 << 22)
#define OBJECTS (1 << 10)
#define EXPORTED __attribute__((visibility("default"), noipa))

/* One stack; the fields before the totals identify it. */
struct record {
	const char *allocator;
	uint32_t frame;
	int complete;
	uint64_t calls, bytes;
};

/* An object as it was loaded: another one may be at its address later. */
struct object {
	uintptr_t base;
	char name[256];
};

/* A frame and the index of its caller: one place on one path to it. For code in no object, `object` is NO_OBJECT. */
struct frame {
	uintptr_t pc;
	uint32_t caller, object;
};

#define NO_OBJECT UINT32_MAX

struct walk {
	uintptr_t from;
	uintptr_t addresses[MAX_DEPTH];
	uint32_t objects[MAX_DEPTH];
	uint32_t depth;
	int begun, complete;
};

static struct record records[RECORDS];
static struct frame frames[FRAMES];
static struct object objects[OBJECTS];
static atomic_uint object_count;
static volatile int recording;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Thread_local int inside __attribute__((tls_model("initial-exec")));
static _Thread_local struct walk current __attribute__((tls_model("initial-exec")));

static void take_lock(void)
{
	while (atomic_flag_test_and_set(&lock)) {
	}
}

static void release_lock(void)
{
	atomic_flag_clear(&lock);
}

static void fail(const char *why)
{
	/* No record is better than a false one. */
	if (write(STDERR_FILENO, why, strlen(why)) < 0)
		_exit(98);
	_exit(99);
}

#ifdef __GLIBC__
/* Returns the name of the object that contains `pc`, and its base; NULL if there is none. Takes no lock. */
static const char *find_module(uintptr_t pc, uintptr_t *base)
{
	struct dl_find_object found;

	if (_dl_find_object((void *)pc, &found))
		return NULL;
	*base = found.dlfo_link_map->l_addr;
	return found.dlfo_link_map->l_name;
}
#else
struct wanted_module {
	uintptr_t pc, base;
	const char *name;
};

static int is_module(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct wanted_module *wanted = argument;

	(void)size;
	for (int index = 0; index < info->dlpi_phnum; index++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && wanted->pc - start < segment->p_memsz) {
			wanted->name = info->dlpi_name;
			wanted->base = info->dlpi_addr;
			return 1;
		}
	}
	return 0;
}

static const char *find_module(uintptr_t pc, uintptr_t *base)
{
	struct wanted_module wanted = {.pc = pc};

	dl_iterate_phdr(is_module, &wanted);
	*base = wanted.base;
	return wanted.name;
}
#endif

static int is_object(uint32_t index, uintptr_t base, const char *name)
{
	return objects[index].base == base && !strcmp(objects[index].name, name);
}

/* Returns the number of the object that contains `pc`; it is loaded, as it is on the stack. */
static uint32_t find_object_number(uintptr_t pc)
{
	uintptr_t base = 0;
	const char *name = find_module(pc, &base);
	uint32_t index;

	if (!name)
		return NO_OBJECT;
	for (index = 0; index < object_count; index++)
		if (is_object(index, base, name))
			return index;
	take_lock();
	for (index = 0; index < object_count && !is_object(index, base, name); index++)
		;
	if (index == OBJECTS || strlen(name) >= sizeof(objects[index].name))
		fail("ground truth: too many objects\n");
	if (index == object_count) {
		objects[index].base = base;
		strcpy(objects[index].name, name);
		object_count++;
	}
	release_lock();
	return index;
}

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *argument)
{
	struct walk *walk = argument;
	uintptr_t pc = _Unwind_GetIP(context);

	/* Skips the frames of this library, which come before the caller's. */
	walk->begun |= pc == walk->from;
	if (!walk->begun)
		return _URC_NO_REASON;
	/* libgcc reports a last frame at 0, above the one whose return address is undefined. */
	if (!pc) {
		walk->complete = 1;
		return _URC_NO_REASON;
	}
	if (walk->depth == MAX_DEPTH)
		return _URC_END_OF_STACK;
	walk->objects[walk->depth] = find_object_number(pc - 1);
	walk->addresses[walk->depth++] = pc;
	return _URC_NO_REASON;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0x9fb21c651e98df25ULL;
	return hash ^ hash >> 29;
}

/* Returns the index of `pc` in an object, called from `caller`. Index 0 is no frame. */
static uint32_t find_frame(uintptr_t pc, uint32_t object, uint32_t caller)
{
	uint64_t hash = mix(mix(object, pc), caller);

	for (uint32_t step = 0; step < FRAMES; step++) {
		uint32_t index = (hash + step) % FRAMES;
		struct frame *frame = &frames[index];

		if (index && !frame->pc)
			*frame = (struct frame){.pc = pc, .caller = caller, .object = object};
		if (index && frame->pc == pc && frame->caller == caller && frame->object == object)
			return index;
	}
	fail("ground truth: too many frames\n");
	return 0;
}

static struct record *find(const char *allocator, const struct walk *walk)
{
	uint32_t frame = 0;
	uint64_t hash;

	for (uint32_t depth = walk->depth; depth > 0; depth--)
		frame = find_frame(walk->addresses[depth - 1], walk->objects[depth - 1], frame);
	hash = mix(mix((uintptr_t)allocator, frame), walk->complete);
	for (uint32_t step = 0; step < RECORDS; step++) {
		struct record *record = &records[(hash + step) % RECORDS];

		if (!record->allocator)
			*record = (struct record){.allocator = allocator, .frame = frame,
						  .complete = walk->complete};
		if (record->allocator == allocator && record->frame == frame &&
		    record->complete == walk->complete)
			return record;
	}
	fail("ground truth: too many stacks\n");
	return NULL;
}

static void walk_from(uintptr_t from)
{
	current.from = from;
	current.depth = current.begun = current.complete = 0;
	_Unwind_Backtrace(add_frame, &current);
}

static void record_call(const char *allocator, size_t bytes)
{
	struct record *record;

	take_lock();
	record = find(allocator, &current);
	record->calls++;
	record->bytes += bytes;
	release_lock();
}

/* Begins a call from `from`. Returns whether it must be recorded if it succeeds. */
static int begin(void *from)
{
	if (inside++ || !recording)
		return 0;
	walk_from((uintptr_t)from);
	if (!current.begun)
		fail("ground truth: the caller is not on the stack\n");
	return 1;
}

#define CALLER __builtin_return_address(0)

/* Evaluates `call`, and records it if it is the outermost call and `success` is true then. */
#define RECORDED(name, call, success, bytes)            \
	do {                                            \
		int wanted = begin(CALLER);             \
		call;                                   \
		if (wanted && (success))                \
			record_call(name, bytes);       \
		inside--;                               \
	} while (0)

EXPORTED void *NAME(malloc)(size_t size)
{
	void *block;

	RECORDED("malloc", block = REAL(malloc)(size), block, size);
	return block;
}

EXPORTED void *NAME(calloc)(size_t count, size_t size)
{
	void *block;

	RECORDED("calloc", block = REAL(calloc)(count, size), block, count * size);
	return block;
}

EXPORTED void *NAME(realloc)(void *old, size_t size)
{
	void *block;

	RECORDED("realloc", block = REAL(realloc)(old, size), block, size);
	return block;
}

EXPORTED int NAME(posix_memalign)(void **result, size_t alignment, size_t size)
{
	int status;

	RECORDED("posix_memalign", status = REAL(posix_memalign)(result, alignment, size), !status, size);
	return status;
}

EXPORTED void *NAME(aligned_alloc)(size_t alignment, size_t size)
{
	void *block;

	RECORDED("aligned_alloc", block = REAL(aligned_alloc)(alignment, size), block, size);
	return block;
}

#ifndef WRAPPED
/* Up to glibc 2.37, aligned_alloc and memalign are one function. */
EXPORTED void *NAME(memalign)(size_t alignment, size_t size)
{
	const char *name = REAL(memalign) == REAL(aligned_alloc) ? "aligned_alloc" : "memalign";
	void *block;

	RECORDED(name, block = REAL(memalign)(alignment, size), block, size);
	return block;
}

EXPORTED void *NAME(reallocarray)(void *old, size_t count, size_t size)
{
	void *block;

	RECORDED("reallocarray", block = REAL(reallocarray)(old, count, size), block, count * size);
	return block;
}

EXPORTED void *NAME(valloc)(size_t size)
{
	void *block;

	RECORDED("valloc", block = REAL(valloc)(size), block, size);
	return block;
}

EXPORTED void *NAME(pvalloc)(size_t size)
{
	void *block;

	RECORDED("pvalloc", block = REAL(pvalloc)(size), block, size);
	return block;
}
#endif

#ifdef WITH_JEMALLOC
/* Functions of jemalloc, only on request: some programs take their presence as a sign of jemalloc. */
EXPORTED void *NAME(mallocx)(size_t size, int flags)
{
	void *block;

	RECORDED("mallocx", block = REAL(mallocx)(size, flags), block, size);
	return block;
}

EXPORTED void *NAME(rallocx)(void *old, size_t size, int flags)
{
	void *block;

	RECORDED("rallocx", block = REAL(rallocx)(old, size, flags), block, size);
	return block;
}
#endif

static void write_frame(FILE *file, uint32_t index, const char *executable)
{
	static uint8_t written[FRAMES];
	struct frame *frame = &frames[index];
	const char *module = "?";
	uintptr_t base = 0;

	if (!index || written[index])
		return;
	written[index] = 1;
	write_frame(file, frame->caller, executable);
	if (frame->object != NO_OBJECT) {
		module = objects[frame->object].name;
		base = objects[frame->object].base;
	}
	/* The executable has an empty name, or musl's name for it. */
	if (!*module || !strcmp(module, "/proc/self/exe"))
		module = executable;
	fprintf(file, "frame %u %u %s %lx\n", index, frame->caller, module, frame->pc - base);
}

/* Path of the file for the records. */
static char records_path[4096];

static void write_records(void)
{
	char executable[4096] = "";
	FILE *file = fopen(records_path, "w");

	if (!file || readlink("/proc/self/exe", executable, sizeof(executable) - 1) < 0)
		fail("ground truth: cannot write the records\n");
	for (uint32_t index = 0; index < RECORDS; index++) {
		struct record *record = &records[index];

		if (!record->allocator)
			continue;
		write_frame(file, record->frame, executable);
		fprintf(file, "stack %s %lu %lu %s %u\n", record->allocator, record->calls, record->bytes,
			record->complete ? "end" : "cut", record->frame);
	}
	fclose(file);
}

static void say(const char *line)
{
	if (write(STDOUT_FILENO, line, strlen(line)) < 0)
		fail("ground truth: standard output is closed\n");
}

static void begin_recording(void)
{
	/* Makes the unwinder do its one-time initialization. */
	walk_from((uintptr_t)CALLER);
	recording = 1;
}

static void on_start(int number)
{
	(void)number;
	begin_recording();
	say("recording\n");
}

static void on_end(int number)
{
	(void)number;
	recording = 0;
	write_records();
	say("recorded\n");
}

/* Prints a line and waits for one. */
static void rendezvous(const char *line)
{
	char byte = 0;

	say(line);
	while (byte != '\n') {
		if (read(STDIN_FILENO, &byte, 1) != 1)
			_exit(97);
	}
}

static int gated;

__attribute__((constructor)) static void start(void)
{
	/* SA_RESTART: the read in which the process waits goes on. */
	struct sigaction begin = {.sa_handler = on_start, .sa_flags = SA_RESTART};
	struct sigaction end = {.sa_handler = on_end, .sa_flags = SA_RESTART};

	/* Read now: at the end, the program may have changed its environment. */
	snprintf(records_path, sizeof(records_path), "%s", getenv("GROUND_TRUTH"));
	/* Programs that this one starts are not recorded. */
	unsetenv("LD_PRELOAD");
	if (getenv("GROUND_TRUTH_GATE")) {
		gated = 1;
		begin_recording();
		rendezvous("ready\n");
		return;
	}
	sigaction(SIGUSR1, &begin, NULL);
	sigaction(SIGUSR2, &end, NULL);
}

__attribute__((destructor)) static void finish(void)
{
	if (!gated)
		return;
	recording = 0;
	rendezvous("done\n");
	write_records();
	say("recorded\n");
}
