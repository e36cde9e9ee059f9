/*
 * A preload library that says what a process allocates, as an independent witness: it defines the allocation
 * functions, hands each call to glibc's own, and walks the stack of each success by _Unwind_Backtrace, the
 * unwinder that carries C++ exceptions.
 *
 * SIGUSR1 starts the recording, SIGUSR2 ends it and writes the records to the file named by GROUND_TRUTH; each
 * says so on standard output. They are to be sent while the process stands still in a read. While it records
 * it allocates nothing; its table is in its zeroed memory.
 *
 * Only the outermost call of a thread counts. The walk is made before glibc is called: in glibc's function the
 * return address may be that of a return probe, which no unwinder in the process can cross. For the same
 * reason this library must not be probed itself, and is not since it does not define free.
 *
 * Stacks start at the caller of the outermost function. The file has a line for each distinct stack:
 *   ALLOCATOR CALLS BYTES END {MODULE ADDRESS}...
 * ADDRESS is the return address less the module's load address, END is "end" if the unwinder reached the end
 * of the stack and "cut" if it did not.
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

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void *__libc_valloc(size_t size);
void *__libc_pvalloc(size_t size);

/* What glibc has no other name for; nothing calls them before this library is initialised. */
static void *(*real_reallocarray)(void *, size_t, size_t);
static int (*real_posix_memalign)(void **, size_t, size_t);

#define MAX_DEPTH 600
#define RECORDS (1 << 16)
#define ADDRESSES (1 << 23)
#define EXPORTED __attribute__((visibility("default"), noipa))

struct record {
	const char *allocator;
	uint64_t calls, bytes;
	uint32_t first, depth;
	int complete;
};

struct walk {
	uintptr_t from;
	uintptr_t addresses[MAX_DEPTH];
	uint32_t depth;
	int begun, complete;
};

static struct record records[RECORDS];
static uintptr_t addresses[ADDRESSES];
static uint32_t address_count = 1;
static volatile int recording;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Thread_local int inside __attribute__((tls_model("initial-exec")));
static _Thread_local struct walk current __attribute__((tls_model("initial-exec")));

static void fail(const char *why)
{
	/* Not a false record: none at all. */
	if (write(STDERR_FILENO, why, strlen(why)) < 0)
		_exit(98);
	_exit(99);
}

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *argument)
{
	struct walk *walk = argument;
	uintptr_t pc = _Unwind_GetIP(context);

	/* The frames of this library are before the caller's. */
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
	walk->addresses[walk->depth++] = pc;
	return _URC_NO_REASON;
}

static struct record *find(const char *allocator, const struct walk *walk)
{
	size_t length = walk->depth * sizeof(uintptr_t);
	uint64_t hash = (uintptr_t)allocator + walk->complete;

	for (uint32_t frame = 0; frame < walk->depth; frame++)
		hash = (hash ^ walk->addresses[frame]) * 0x9fb21c651e98df25ULL ^ hash >> 31;
	for (uint32_t step = 0; step < RECORDS; step++) {
		struct record *record = &records[(hash + step) % RECORDS];

		if (!record->allocator) {
			if (address_count + walk->depth > ADDRESSES)
				fail("ground truth: too many frames\n");
			*record = (struct record){.allocator = allocator, .first = address_count,
						  .depth = walk->depth, .complete = walk->complete};
			memcpy(&addresses[address_count], walk->addresses, length);
			address_count += walk->depth;
			return record;
		}
		if (record->allocator == allocator && record->depth == walk->depth &&
		    record->complete == walk->complete &&
		    !memcmp(&addresses[record->first], walk->addresses, length))
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

	while (atomic_flag_test_and_set(&lock)) {
	}
	record = find(allocator, &current);
	record->calls++;
	record->bytes += bytes;
	atomic_flag_clear(&lock);
}

/* Begins a call from `from`. Returns whether it is to be recorded if it succeeds. */
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

/* Evaluates `call`, and records it if it is the outermost and `success` is true of it then. */
#define RECORDED(name, call, success, bytes)            \
	do {                                            \
		int wanted = begin(CALLER);             \
		call;                                   \
		if (wanted && (success))                \
			record_call(name, bytes);       \
		inside--;                               \
	} while (0)

EXPORTED void *malloc(size_t size)
{
	void *block;

	RECORDED("malloc", block = __libc_malloc(size), block, size);
	return block;
}

EXPORTED void *calloc(size_t count, size_t size)
{
	void *block;

	RECORDED("calloc", block = __libc_calloc(count, size), block, count * size);
	return block;
}

EXPORTED void *realloc(void *old, size_t size)
{
	void *block;

	RECORDED("realloc", block = __libc_realloc(old, size), block, size);
	return block;
}

EXPORTED void *reallocarray(void *old, size_t count, size_t size)
{
	void *block;

	RECORDED("reallocarray", block = real_reallocarray(old, count, size), block, count * size);
	return block;
}

/* In glibc, aligned_alloc and memalign are one function. */
EXPORTED void *memalign(size_t alignment, size_t size)
{
	void *block;

	RECORDED("aligned_alloc", block = __libc_memalign(alignment, size), block, size);
	return block;
}

EXPORTED void *aligned_alloc(size_t alignment, size_t size)
{
	void *block;

	RECORDED("aligned_alloc", block = __libc_memalign(alignment, size), block, size);
	return block;
}

EXPORTED int posix_memalign(void **result, size_t alignment, size_t size)
{
	int status;

	RECORDED("posix_memalign", status = real_posix_memalign(result, alignment, size), !status, size);
	return status;
}

EXPORTED void *valloc(size_t size)
{
	void *block;

	RECORDED("valloc", block = __libc_valloc(size), block, size);
	return block;
}

EXPORTED void *pvalloc(size_t size)
{
	void *block;

	RECORDED("pvalloc", block = __libc_pvalloc(size), block, size);
	return block;
}

/* Where an address lies. */
struct place {
	uintptr_t pc;
	const char *module;
	uintptr_t address;
};

static int find_place(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct place *place = argument;

	(void)size;
	for (int index = 0; index < info->dlpi_phnum; index++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[index];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && place->pc - 1 - start < segment->p_memsz) {
			place->module = info->dlpi_name;
			place->address = place->pc - info->dlpi_addr;
			return 1;
		}
	}
	return 0;
}

static void write_frame(FILE *file, uintptr_t pc, const char *executable)
{
	struct place place = {.pc = pc, .module = "?", .address = pc};

	dl_iterate_phdr(find_place, &place);
	/* The executable has an empty name. */
	fprintf(file, " %s %lx", *place.module ? place.module : executable, place.address);
}

static void write_records(void)
{
	char executable[4096] = "";
	FILE *file = fopen(getenv("GROUND_TRUTH"), "w");

	if (!file || readlink("/proc/self/exe", executable, sizeof(executable) - 1) < 0)
		fail("ground truth: cannot write the records\n");
	for (uint32_t index = 0; index < RECORDS; index++) {
		struct record *record = &records[index];

		if (!record->allocator)
			continue;
		fprintf(file, "%s %lu %lu %s", record->allocator, record->calls, record->bytes,
			record->complete ? "end" : "cut");
		for (uint32_t frame = 0; frame < record->depth; frame++)
			write_frame(file, addresses[record->first + frame], executable);
		fputc('\n', file);
	}
	fclose(file);
}

static void say(const char *line)
{
	if (write(STDOUT_FILENO, line, strlen(line)) < 0)
		fail("ground truth: standard output is closed\n");
}

static void on_start(int number)
{
	(void)number;
	/* What the unwinder does once, it does now. */
	walk_from((uintptr_t)CALLER);
	recording = 1;
	say("recording\n");
}

static void on_end(int number)
{
	(void)number;
	recording = 0;
	write_records();
	say("recorded\n");
}

__attribute__((constructor)) static void start(void)
{
	/* The read that the process stands in goes on. */
	struct sigaction begin = {.sa_handler = on_start, .sa_flags = SA_RESTART};
	struct sigaction end = {.sa_handler = on_end, .sa_flags = SA_RESTART};

	real_reallocarray = (void *(*)(void *, size_t, size_t))dlsym(RTLD_NEXT, "reallocarray");
	real_posix_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
	sigaction(SIGUSR1, &begin, NULL);
	sigaction(SIGUSR2, &end, NULL);
}
