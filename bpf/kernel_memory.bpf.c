/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The BPF programs of kernel mode, an object of its own: kernel_memory.h describes them. User space loads those for
 * which the kernel has the events.
 */
#include "kernel_memory.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The pair of programs of an event. */
#define KERNEL_EVENT(name, event, tracepoint, seen, record) PAIR_OF_PROGRAMS("raw_tp/" tracepoint, name, event, seen, record)

KERNEL_EVENT(kernel_kmalloc, EVENT_KMALLOC, "kmalloc", COUNTER_NESTED_ALLOCATION,
	     slab_allocated(ctx, kmalloc_size_at, KERNEL_KMALLOC))
KERNEL_EVENT(kernel_kmalloc_node, EVENT_KMALLOC_NODE, "kmalloc_node", COUNTER_NESTED_ALLOCATION,
	     slab_allocated(ctx, kmalloc_node_size_at, KERNEL_KMALLOC))
KERNEL_EVENT(kernel_cache_alloc, EVENT_CACHE_ALLOC, "kmem_cache_alloc", COUNTER_NESTED_ALLOCATION,
	     slab_allocated(ctx, cache_size_at, KERNEL_CACHE))
KERNEL_EVENT(kernel_cache_alloc_node, EVENT_CACHE_ALLOC_NODE, "kmem_cache_alloc_node", COUNTER_NESTED_ALLOCATION,
	     slab_allocated(ctx, cache_node_size_at, KERNEL_CACHE))
KERNEL_EVENT(kernel_kfree, EVENT_KFREE, "kfree", COUNTER_NESTED_FREE, kernel_freed(SPACE_SLAB, RAW_ARGUMENT(ctx, 1)))
KERNEL_EVENT(kernel_cache_free, EVENT_CACHE_FREE, "kmem_cache_free", COUNTER_NESTED_FREE,
	     kernel_freed(SPACE_SLAB, RAW_ARGUMENT(ctx, 1)))
KERNEL_EVENT(kernel_page_alloc, EVENT_PAGE_ALLOC, "mm_page_alloc", COUNTER_NESTED_ALLOCATION, pages_allocated(ctx))
KERNEL_EVENT(kernel_page_free, EVENT_PAGE_FREE, "mm_page_free", COUNTER_NESTED_FREE,
	     pages_freed(RAW_ARGUMENT(ctx, 0), (u32)RAW_ARGUMENT(ctx, 1)))
KERNEL_EVENT(kernel_percpu_alloc, EVENT_PERCPU_ALLOC, "percpu_alloc_percpu", COUNTER_NESTED_ALLOCATION,
	     percpu_allocated(ctx))
KERNEL_EVENT(kernel_percpu_free, EVENT_PERCPU_FREE, "percpu_free_percpu", COUNTER_NESTED_FREE,
	     kernel_freed(SPACE_PERCPU, RAW_ARGUMENT(ctx, 2)))

/* Bulk allocations have no event, and neither have bulk frees, which free objects that waited for RCU. */
SEC("fexit/kmem_cache_alloc_bulk")
int kernel_bulk_alloc(u64 *ctx)
{
	u64 number = function_result(ctx);

	if ((s32)number > 0)
		objects_allocated(ctx, (void *)function_argument(ctx, 0), (u64 *)function_argument(ctx, 3), number);
	return 0;
}

SEC("fentry/kmem_cache_free_bulk")
int kernel_bulk_free(u64 *ctx)
{
	objects_freed(function_argument(ctx, 1), (u64 *)function_argument(ctx, 2));
	return 0;
}

/* Records the free of an object that the traced function put into a sheaf, which is freed as a whole after RCU; the
 * function returns true if it did. */
SEC("fexit/__kfree_rcu_sheaf")
int kernel_sheaf_free(u64 *ctx)
{
	if ((u8)function_result(ctx))
		kernel_freed(SPACE_SLAB, function_argument(ctx, 1));
	return 0;
}
