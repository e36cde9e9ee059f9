/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Kernel mode: allocations and frees by the kernel's own allocators, from their tracepoints. One event has all data of
 * a call, so no per-call state is kept; stacks come from the kernel's own unwinder (bpf_get_stack).
 *
 * Events can occur while others are recorded, in interrupts: each has a pair of programs (running.h). User space
 * reports events that both miss.
 *
 * Nothing here allocates memory: all maps are preallocated.
 */
#pragma once

#include "calls/call_events.h"
#include "calls/sampling.h"
#include "counters.h"
#include "hash.h"
#include "kernel.h"
#include "running.h"
#include "seam.h"
#include "store/blocks.h"
#include "store/store_config.h"
#include "store/store_maps.h"
#include "store/stacks.h"

/* Maximum number of frames of one stack: the kernel returns no more (kernel.perf_event_max_stack). */
const volatile u32 kernel_stack_limit = 127;
/* Number of the event's argument that is the requested size; 0: use the object size of the cache in argument 2. */
const volatile u32 kmalloc_size_at = 2;
const volatile u32 kmalloc_node_size_at = 2;
const volatile u32 cache_size_at = 0;
const volatile u32 cache_node_size_at = 0;
/* True if the per-CPU allocator's event has the caller's address as its first argument. */
const volatile bool percpu_has_caller = true;
/* Size of the kernel's page descriptor (struct page), if a power of two; else 0, and a block of pages can only be freed
 * as a whole. */
const volatile u32 page_descriptor_bytes = 0;
/*
 * Address range of the interrupt entry code: frames outward of it belong to the interrupted code, not to the
 * allocation.
 */
const volatile u64 interrupt_entries_start = 0;
const volatile u64 interrupt_entries_end = 0;

_Static_assert((u32)KERNEL_EVENTS <= RUNNING_MARKS, "each event has a pair of programs");

/* Sampler of each CPU, which chooses the allocations to record. Written and read by probes. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, u32);
	__type(value, struct sampler);
	__uint(max_entries, 1);
} kernel_samplers SEC(".maps");

/* Orders of page blocks seen: bit n is set once a block of 2^n pages was. Written and read by probes. */
SEC(".bss.orders") struct page_orders {
	u64 seen;
} page_orders;

struct kmem_cache___read {
	unsigned int object_size;
} __attribute__((preserve_access_index));

/* An argument of a raw tracepoint. The verifier requires a constant offset in the load instruction. */
#define RAW_ARGUMENT(ctx, number)                                                                                      \
	({                                                                                                             \
		u64 value_;                                                                                            \
		asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(value_) : "r"(ctx), "i"(8 * (number)));                   \
		value_;                                                                                                \
	})

/*
 * Tags a frame and adds it to the stack's hash. Returns false at the entry of an interrupt. Not static: verified once,
 * by itself.
 */
__noinline bool add_kernel_frame(struct walk *walk, u32 number)
{
	if (!walk || number >= MAX_FRAMES)
		return false;

	u64 pc = walk->frames[number];
	u64 frame = (pc & ((1ULL << FRAME_FOUND_BY_SHIFT) - 1)) | (u64)FOUND_BY_KERNEL << FRAME_FOUND_BY_SHIFT;

	walk->frames[number] = frame;
	walk->hash = mix(walk->hash, frame);
	if (pc - interrupt_entries_start >= interrupt_entries_end - interrupt_entries_start)
		return true;
	walk->frame_count = number + 1;
	walk->end = END_KERNEL_UNWINDER;
	return false;
}

/*
 * Returns the index of the record of the stack in walk->frames, which is `bytes` long; stores the stack if it is new.
 */
static __always_inline u32 kernel_record(struct walk *walk, u32 bytes, u32 allocator)
{
	walk->frame_count = bytes / 8;
	walk->hash = 0;
	walk->pc = 0;
	walk->end = walk->frame_count >= kernel_stack_limit ? END_DEPTH_LIMIT : END_KERNEL_UNWINDER;
	for (u32 number = 0; number < MAX_FRAMES && number < walk->frame_count; number++)
		if (!add_kernel_frame(walk, number))
			break;

	u64 id = mix(walk->hash, allocator << 8 | walk->end);
	u32 *stored = bpf_map_lookup_elem(&stack_ids, &id);

	return stored ? *stored : store_stack(walk, id, 0, 0, allocator, 0);
}

/* Returns the index of the record of the kernel stack at an event, or that of "not walked" if no stack can be read. */
static __always_inline u32 kernel_stack(void *ctx, u32 allocator)
{
	u32 index = MAX_FUNCTIONS + allocator;
	u32 key;
	struct scratch *scratch = take_scratch(&key);

	if (!scratch)
		return index;

	long bytes = bpf_get_stack(ctx, scratch->fast.walk.frames, 8 * kernel_stack_limit, 0);

	if (bytes > 0)
		index = kernel_record(&scratch->fast.walk, bytes, allocator);
	release_scratch(scratch);
	return index;
}

/* Returns the stored weight of an allocation, or 0 if it is not to be recorded. */
static __always_inline u32 kernel_weight(u64 size)
{
	u32 key = 0;

	if (is_filtered(size)) {
		count(COUNTER_FILTERED);
		count_by(COUNTER_FILTERED_BYTES, size);
		return 0;
	}
	if (sampling == SAMPLE_ALL)
		return WEIGHT_ONE;

	struct sampler *sampler = bpf_map_lookup_elem(&kernel_samplers, &key);

	return sampler ? chosen_weight(sampler, size) : 0;
}

static __always_inline void record_kernel_block(u32 space, u64 address, u64 size, u32 weight, u32 stack)
{
	struct block block = { .size = size, .weight = weight, .stack = stack };

	block.allocated_at = bpf_ktime_get_ns();
	record_block(space, address, &block, NULL);
}

/* Records a block at an address of `space` (enum kernel_space). Address 0 is a failed allocation; the others up to
 * ZERO_SIZE_BLOCK hold no memory. */
static __always_inline void kernel_allocated(void *ctx, u32 space, u64 address, u64 size, u32 allocator)
{
	count(COUNTER_PROBE_HITS);
	if (!address)
		count(COUNTER_FAILED);
	if (address <= ZERO_SIZE_BLOCK)
		return;

	u32 weight = kernel_weight(size);

	if (!weight)
		return;
	trace_call(CALL_BEGINS, space, 0, size, MAX_FUNCTIONS + allocator);
	record_kernel_block(space, address, size, weight, kernel_stack(ctx, allocator));
}

static __always_inline void kernel_freed(u32 space, u64 address)
{
	struct block block;

	if (address > ZERO_SIZE_BLOCK && !free_block(space, address, &block, NULL))
		count_unknown_free();
}

/* Returns the requested size, or the object size of the cache. */
static __always_inline u64 slab_size(void *ctx, u32 size_at)
{
	struct kmem_cache___read *cache;
	unsigned int size = 0;

	if (size_at == 2)
		return RAW_ARGUMENT(ctx, 2);
	if (size_at == 3)
		return RAW_ARGUMENT(ctx, 3);
	cache = (void *)RAW_ARGUMENT(ctx, 2);
	bpf_probe_read_kernel(&size, sizeof(size), &cache->object_size);
	return size;
}

static __always_inline void slab_allocated(void *ctx, u32 size_at, u32 allocator)
{
	kernel_allocated(ctx, SPACE_SLAB, RAW_ARGUMENT(ctx, 1), slab_size(ctx, size_at), allocator);
}

static __always_inline void see_orders(u64 bits)
{
	if (bits & ~*(volatile u64 *)&page_orders.seen)
		__sync_fetch_and_or(&page_orders.seen, bits);
}

static __always_inline void pages_allocated(void *ctx)
{
	u64 order = RAW_ARGUMENT(ctx, 1) & 63;

	see_orders(1ULL << order);
	kernel_allocated(ctx, SPACE_PAGE, RAW_ARGUMENT(ctx, 0), (u64)PAGE_BYTES << order, KERNEL_PAGES);
}

/* Pages that are freed, and the recorded block that holds them. */
struct page_search {
	u64 page;
	u64 order;
	u64 block_order;
	struct block block;
};

/*
 * Returns the descriptor of the first page of the block of 2^order pages that holds `page`. Descriptors are one
 * array, in which those of every block start at a multiple of their total size.
 */
static __always_inline u64 first_page(u64 page, u64 order)
{
	return page & -((u64)page_descriptor_bytes << order);
}

/*
 * Takes the recorded block that holds the page and whose order is `more` larger than that of the freed pages, if there
 * is one. Returns whether the search goes on. Not static: verified once, by itself.
 */
__noinline bool take_larger(struct page_search *search, u32 more)
{
	u64 order;

	if (!search)
		return false;
	order = search->order + more;
	if (order > MAX_PAGE_ORDER)
		return false;
	if (!(*(volatile u64 *)&page_orders.seen >> order & 1))
		return true;

	struct block_key key = block_key(SPACE_PAGE, first_page(search->page, order));
	struct block *block = bpf_map_lookup_elem(&blocks, &key);

	if (!block || block->size != (u64)PAGE_BYTES << order)
		return true;
	if (take_block(SPACE_PAGE, key.address, &search->block, NULL))
		search->block_order = order;
	return false;
}

/*
 * Records, as a separate block, the half that does not hold the freed pages and whose order is `more` larger than
 * theirs. Returns whether there are further halves. Not static: verified once, by itself.
 */
__noinline bool keep_half(struct page_search *search, u32 more)
{
	u64 order;

	if (!search)
		return false;
	order = search->order + more;
	if (order >= search->block_order || order > MAX_PAGE_ORDER)
		return false;

	/*
	 * Splitting a block of order n + 1 that holds the freed pages gives two halves of order n: one holds them too
	 * and is split further, its buddy (the address with the bit of that order flipped) stays allocated. From
	 * `order` up to `block_order` - 1, these buddies and the freed pages are all of the block, each page once.
	 */
	struct block half = search->block;

	half.size = (u64)PAGE_BYTES << order;
	add_allocated(&half);
	return_block(SPACE_PAGE, first_page(search->page, order) ^ (u64)page_descriptor_bytes << order, &half);
	return true;
}

/*
 * Frees a part of a block of 2^block_order pages. From then on, it is counted as the parts it was split into, as if
 * they had been allocated one by one. Until this returns, the other parts are not in the table: one that another CPU
 * frees meanwhile stays recorded as outstanding, until its first page is allocated again.
 */
static __always_inline void free_part(struct page_search *search)
{
	struct block part = search->block;

	part.size = (u64)PAGE_BYTES << search->order;
	/*
	 * The parts are added before the whole is taken back, so that a reader never sees less allocated than freed.
	 * Their orders are marked first: take_larger skips orders that are not.
	 */
	see_orders((1ULL << (search->block_order & 63)) - 1);
	add_allocated(&part);
	for (u32 more = 0; more < MAX_PAGE_ORDER; more++)
		if (!keep_half(search, more))
			break;
	take_back_allocated(&search->block);
	add_freed(&part);
}

static __always_inline u64 order_of(u64 bytes)
{
	u64 order = 0;

	for (u32 step = 32; step; step /= 2)
		if (bytes >> step) {
			order += step;
			bytes >>= step;
		}
	return order - PAGE_SHIFT;
}

/* Records a free of 2^order pages: a whole block, or a part of a block that the kernel has split. */
static __always_inline void pages_freed(u64 page, u64 order)
{
	struct page_search search = { .page = page, .order = order };

	if (take_block(SPACE_PAGE, page, &search.block, NULL)) {
		if (search.block.size <= (u64)PAGE_BYTES << order || !page_descriptor_bytes) {
			add_freed(&search.block);
			trace_call(BLOCK_FREED, SPACE_PAGE, page, search.block.size, search.block.stack);
			return;
		}
		search.block_order = order_of(search.block.size);
	} else if (page_descriptor_bytes) {
		for (u32 more = 1; more <= MAX_PAGE_ORDER; more++)
			if (!take_larger(&search, more))
				break;
	}
	if (!search.block_order) {
		count_unknown_free();
		return;
	}
	free_part(&search);
	trace_call(BLOCK_FREED, SPACE_PAGE, page, (u64)PAGE_BYTES << order, search.block.stack);
}

static __always_inline void percpu_allocated(void *ctx)
{
	if (percpu_has_caller)
		kernel_allocated(ctx, SPACE_PERCPU, RAW_ARGUMENT(ctx, 7), RAW_ARGUMENT(ctx, 3), KERNEL_PERCPU);
	else
		kernel_allocated(ctx, SPACE_PERCPU, RAW_ARGUMENT(ctx, 6), RAW_ARGUMENT(ctx, 2), KERNEL_PERCPU);
}

/*
 * Returns an argument of a traced function; not all kernels allow loading a pointer to pointers from the context
 * itself.
 */
static __always_inline u64 function_argument(void *ctx, u32 number)
{
	u64 value = 0;

	bpf_get_func_arg(ctx, number, &value);
	return value;
}

static __always_inline u64 function_result(void *ctx)
{
	u64 value = 0;

	bpf_get_func_ret(ctx, &value);
	return value;
}

/* Objects that are allocated or freed in one call: an array of addresses, without an event for each. */
struct bulk {
	u64 *objects;
	u64 size;
	u32 stack;
};

static __always_inline u64 object_of(struct bulk *bulk, u64 number)
{
	u64 object = 0;

	bpf_probe_read_kernel(&object, sizeof(object), &bulk->objects[number]);
	return object;
}

/* Not static, like record_bulk_object: verified once, by itself. */
__noinline int free_bulk_object(struct bulk *bulk, u64 number)
{
	if (bulk)
		kernel_freed(SPACE_SLAB, object_of(bulk, number));
	return 0;
}

static long free_object(u64 number, struct bulk *bulk)
{
	return free_bulk_object(bulk, number);
}

__noinline int record_bulk_object(struct bulk *bulk, u64 number)
{
	u64 object = bulk ? object_of(bulk, number) : 0;
	u32 weight = object ? kernel_weight(bulk->size) : 0;

	if (weight)
		record_kernel_block(SPACE_SLAB, object, bulk->size, weight, bulk->stack);
	return 0;
}

static long record_object(u64 number, struct bulk *bulk)
{
	return record_bulk_object(bulk, number);
}

static __always_inline void objects_freed(u64 count, u64 *objects)
{
	struct bulk bulk = { .objects = objects };

	bpf_loop(count, free_object, &bulk, 0);
}

static __always_inline void objects_allocated(void *ctx, void *cache, u64 *objects, u32 number)
{
	struct bulk bulk = { .objects = objects };
	struct kmem_cache___read *read = cache;
	unsigned int size = 0;

	count(COUNTER_PROBE_HITS);
	bpf_probe_read_kernel(&size, sizeof(size), &read->object_size);
	bulk.size = size;
	bulk.stack = kernel_stack(ctx, KERNEL_CACHE);
	bpf_loop(number, record_object, &bulk, 0);
}
