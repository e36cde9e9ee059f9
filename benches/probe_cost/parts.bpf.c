/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs that do one thing REPEATS times, to measure what each part of a probe costs over `nothing`. They are
 * attached to `free`, beside `part_entry` at `malloc`; `part_is_return` is attached to `malloc`, beside `part_nothing`
 * at `free`.
 */
#define SEC(name) __attribute__((section(name), used))
#define REPEATS 32
#define OPAQUE(value) asm volatile("" : "+r"(value))

typedef unsigned int u32;
typedef unsigned long long u64;

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static void *(*lookup)(void *map, const void *key) = (void *)1;
static u64 (*ktime)(void) = (void *)5;
static u32 (*cpu)(void) = (void *)8;
static u64 (*pid_tgid)(void) = (void *)14;
static long (*read_user)(void *to, u32 bytes, const void *from) = (void *)112;
static u64 (*jiffies)(void) = (void *)118;
static void *(*task_storage)(void *map, void *task, void *value, u64 flags) = (void *)156;
static void *(*current_task)(void) = (void *)158;
static u64 (*cookie)(void *ctx) = (void *)174;
extern _Bool bpf_session_is_return(void) __attribute__((section(".ksyms")));

#define uint(name, value) int(*name)[value]
struct {
	uint(type, 29);
	uint(map_flags, 1);
	int *key;
	struct {
		u64 words[24];
	} *value;
} threads SEC(".maps");

struct {
	uint(type, 1);
	uint(max_entries, 1024);
	u32 *key;
	u64 *value;
} hash SEC(".maps");

struct {
	uint(type, 6);
	uint(max_entries, 32);
	u32 *key;
	u64 *value;
} counters SEC(".maps");

struct {
	uint(type, 2);
	uint(max_entries, 32);
	u32 *key;
	u64 *value;
} array SEC(".maps");

u64 sum;
u64 buffer[64];

static __attribute__((noinline)) u64 called(u64 value)
{
	OPAQUE(value);
	return value;
}

/* pt_regs.sp: word 19 on x86-64, word 31 on AArch64. */
#if defined(__TARGET_ARCH_arm64)
#define STACK_POINTER(ctx) ((u64 *)(ctx))[31]
#else
#define STACK_POINTER(ctx) ((u64 *)(ctx))[19]
#endif

#define PART(name, ...)                                          \
	SEC("uprobe.multi")                                      \
	int part_##name(void *ctx)                               \
	{                                                        \
		u64 total = 0;                                   \
		_Pragma("unroll") for (int i = 0; i < REPEATS; i++) \
		{                                                \
			u32 key = 1;                             \
			u64 *value;                              \
			(void)key;                               \
			(void)value;                             \
			__VA_ARGS__;                             \
		}                                                \
		OPAQUE(total);                                   \
		return 0;                                        \
	}

PART(nothing, total += i)
PART(cookie, total += cookie(ctx))
PART(current_task, total += (u64)!!current_task())
PART(pid_tgid, total += pid_tgid())
PART(cpu, total += cpu())
PART(task_storage, value = task_storage(&threads, current_task(), 0, 1); if (value) total += *value)
PART(ktime, total += ktime())
PART(jiffies, total += jiffies())
PART(hash_lookup, value = lookup(&hash, &key); if (value) total += *value)
PART(array_lookup, value = lookup(&array, &key); if (value) total += *value)
PART(percpu_lookup, value = lookup(&counters, &key); if (value) total += *value)
PART(add, u64 *place = &sum; OPAQUE(place); *(volatile u64 *)place += 1)
PART(atomic_add, u64 *place = &sum; OPAQUE(place); __sync_fetch_and_add(place, 1))
PART(exchange_if, u64 *place = &sum; OPAQUE(place); total += __sync_val_compare_and_swap(place, total, total + 1))
PART(call, total += called(i))
PART(read_8, total += read_user(buffer, 8, (void *)STACK_POINTER(ctx)))
PART(read_256, total += read_user(buffer, 256, (void *)STACK_POINTER(ctx)))

SEC("uprobe.session")
int part_entry(void *ctx)
{
	return 1;
}

SEC("uprobe.session")
int part_is_return(void *ctx)
{
	u64 total = 0;

	_Pragma("unroll") for (int i = 0; i < REPEATS; i++) total += bpf_session_is_return();
	OPAQUE(total);
	return 1;
}
