/* Blocks that are lost, in the ways in which programs lose them, and with stale pointers that remain somewhere. */
#pragma once
#include <dlfcn.h>
#include <memory>
#include <vector>
#include "held.h"
#include "held_threads.h"
#include "kinds.h"

KIND(lost_plainly)
static Count set_up_plainly()
{
	for (size_t at = 0; at < wanted; at++)
		lost_plainly(SIZE);
	return each(wanted);
}

KIND(lost_with_interior_pointers)
/* Each has only a pointer to itself. */
static Count set_up_interior_pointers()
{
	for (size_t at = 0; at < wanted; at++) {
		void **block = static_cast<void **>(lost_with_interior_pointers(SIZE));

		block[2] = block + 1;
	}
	return each(wanted);
}

KIND(lost_list)
static Count set_up_lost_list()
{
	list(lost_list);
	return {wanted, 1};
}

KIND(lost_double_list)
static Count set_up_lost_double_list()
{
	double_list(lost_double_list);
	return {wanted, 1};
}

KIND(lost_ring)
static Count set_up_lost_ring()
{
	ring(lost_ring);
	return {wanted, 1};
}

KIND(lost_tree)
static Count set_up_lost_tree()
{
	tree(lost_tree, wanted);
	return {wanted, 1};
}

KIND(lost_table)
/* One of them is a table with pointers to all others. */
static Count set_up_lost_table()
{
	void **table = static_cast<void **>(lost_table(MOST * sizeof(void *)));

	for (size_t at = 1; at < wanted; at++)
		table[at] = lost_table(SIZE);
	return {wanted, 1};
}

KIND(lost_that_hold_others)
/* They point to blocks that are held. */
static Count set_up_that_hold_others()
{
	for (size_t at = 0; at < wanted; at++)
		*static_cast<void **>(lost_that_hold_others(SIZE)) = in_bss[at];
	return each(wanted);
}

KIND(lost_in_own_mapping)
static Count set_up_lost_in_own_mapping()
{
	for (size_t at = 0; at < wanted; at++)
		lost_in_own_mapping(256 << 10);
	return each(wanted);
}

struct Owner {
	std::shared_ptr<Owner> other;
};

extern "C" NOINLINE void lost_by_references(std::shared_ptr<Owner> &one)
{
	one = std::make_shared<Owner>();
	asm volatile("" : : : "memory");
}
/* Makes pairs that own each other. */
static Count set_up_references()
{
	for (size_t at = 0; at < wanted / 2; at++) {
		std::shared_ptr<Owner> one, other;

		lost_by_references(one);
		lost_by_references(other);
		one->other = other;
		other->other = one;
	}
	return {wanted / 2 * 2, wanted / 2};
}

KIND(lost_by_exception)
NOINLINE static void throw_past_block()
{
	void *volatile block = lost_by_exception(SIZE);

	if (block)
		throw 1;
}
static Count set_up_exception()
{
	for (size_t at = 0; at < wanted; at++) {
		try {
			throw_past_block();
		} catch (int) {
		}
	}
	return each(wanted);
}

/* Runs a thread to its end; with a size, on a stack that is then unmapped. */
static Count run_thread(void *(*run)(void *), size_t size)
{
	void *volatile *stack = size ? map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1) : nullptr;
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	if (stack)
		pthread_attr_setstack(&attributes, const_cast<void **>(stack), size);
	if (pthread_create(&thread, &attributes, run, nullptr) != 0 || pthread_join(thread, nullptr) != 0)
		fail("pthread_create");
	pthread_attr_destroy(&attributes);
	if (stack)
		munmap(const_cast<void **>(stack), size);
	return each(wanted);
}

KIND(lost_with_thread)
/* Their pointers were in its thread-local storage, which nothing destroys. */
static Count set_up_with_thread()
{
	return run_thread(
		[](void *) -> void * {
			fill(of_thread, wanted, lost_with_thread);
			return nullptr;
		},
		4 * STACK);
}

KIND(lost_with_cached_stack)
/* Likewise, but the C library keeps the stack for the next thread, and none follows. */
static Count set_up_with_cached_stack()
{
	return run_thread(
		[](void *) -> void * {
			fill(of_thread, wanted, lost_with_cached_stack);
			return nullptr;
		},
		0);
}

KIND(lost_by_realloc)
/* A failing realloc overwrites the only pointer. In a thread, since the C library gives it another heap then. */
static Count set_up_realloc()
{
	return run_thread(
		[](void *) -> void * {
			for (size_t at = 0; at < wanted; at++) {
				volatile size_t too_large = PTRDIFF_MAX - 4096;
				void *volatile block = lost_by_realloc(SIZE);

				block = realloc(block, too_large);
				if (block)
					fail("realloc");
			}
			return nullptr;
		},
		4 * STACK);
}

KIND(lost_with_mapping)
static Count set_up_with_mapping()
{
	void *volatile *table = map(TABLE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	fill(table, wanted, lost_with_mapping);
	munmap(const_cast<void **>(table), TABLE);
	return each(wanted);
}

/* Path of the library, whose data is a table. */
static const char *library_path;

KIND(lost_with_library)
static Count set_up_with_library()
{
	void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
	void *table = library ? dlsym(library, "table") : nullptr;

	if (!table)
		fail(dlerror());
	fill(static_cast<void *volatile *>(table), wanted, lost_with_library);
	dlclose(library);
	return each(wanted);
}

KIND(lost_below_stack_pointer)
/* Called first: then the thread waits in a function with a smaller frame. */
NOINLINE static void fill_deep_frame()
{
	void *volatile table[2 * MOST] = {};

	fill(table, wanted, lost_below_stack_pointer);
}
static Count set_up_below_stack_pointer()
{
	start_thread(
		[](void *) -> void * {
			fill_deep_frame();
			clear_registers();
			/* Not `settle`, which would clear these pointers. */
			sem_post(&settled);
			wait_by_futex();
			return nullptr;
		},
		nullptr);
	return each(wanted);
}

/* Frees a block with stale pointers in it, behind the words where the allocator itself writes. */
static void leave_in_freed(size_t size, size_t count, Allocate *allocate)
{
	constexpr size_t before = 8;
	void **block = static_cast<void **>(scaffold(size));

	fill(block + before, count, allocate);
	free(block);
}

KIND(lost_stale_in_tcache)
static Count set_up_stale_in_tcache()
{
	constexpr size_t pointers = 100;
	size_t left = wanted;

	/* A thread's cache keeps 7 blocks of one size. */
	while (left > 0) {
		size_t now = left < pointers ? left : pointers;

		leave_in_freed((8 + pointers) * sizeof(void *) + 16 * (left / pointers), now, lost_stale_in_tcache);
		left -= now;
	}
	return each(wanted);
}

KIND(lost_stale_in_bin)
/* Another block follows, so that it does not merge with the rest of the heap. */
static Count set_up_stale_in_bin()
{
	static void *volatile behind;
	constexpr size_t words = 12 << 10;
	void **block = static_cast<void **>(scaffold(words * sizeof(void *)));

	behind = scaffold(SIZE);
	/* At its end, as the next allocations are taken from its start. */
	fill(block + words - MOST, wanted, lost_stale_in_bin);
	free(block);
	return each(wanted);
}

KIND(lost_stale_in_top)
/* The last block of the heap merges with the rest of it when it is freed. */
static Count set_up_stale_in_top()
{
	void *blocks[MOST];

	fill(blocks, wanted, lost_stale_in_top);
	void **last = static_cast<void **>(scaffold(100 << 10));

	for (size_t at = 0; at < wanted; at++)
		const_cast<void *volatile *>(last)[8192 + at] = blocks[at];
	free(last);
	return each(wanted);
}

KIND(lost_stale_in_fastbin)
/* Small blocks that no longer fit into the thread's cache. The next large one would merge them with neighbours. */
static Count set_up_stale_in_fastbin()
{
	constexpr size_t size = 112, pointers = 6;
	void *blocks[7 + MOST / pointers + 1];
	size_t used = 0, filled = 0;

	for (; used < 7; used++)
		blocks[used] = scaffold(size);
	for (; filled < wanted; used++) {
		size_t now = wanted - filled < pointers ? wanted - filled : pointers;
		void **block = static_cast<void **>(blocks[used] = scaffold(size));

		fill(block + 8, now, lost_stale_in_fastbin);
		filled += now;
	}
	for (size_t at = 0; at < used; at++)
		free(blocks[at]);
	return each(wanted);
}

KIND(lost_stale_in_slack)
/* Behind the requested size of a block that is held, where the allocator has rounded the size up. */
static Count set_up_stale_in_slack()
{
	static void *volatile table[MOST];

	for (size_t at = 0; at < wanted; at++) {
		void *volatile *block = static_cast<void *volatile *>(malloc(40));

		block[4] = lost_stale_in_slack(SIZE);
		free(const_cast<void **>(block));
		table[at] = malloc(25);
		memset(table[at], 0, 25);
	}
	return each(wanted);
}

KIND(stale_in_vector)
/* Behind the vector's end, in memory that it keeps. */
static Count set_up_stale_vector()
{
	static std::vector<void *> emptied;

	for (size_t at = 0; at < wanted; at++)
		emptied.push_back(stale_in_vector(SIZE));
	emptied.clear();
	return each(wanted);
}

KIND(stale_in_buffer)
/* Behind a text that is shorter than the previous contents of the buffer. */
static Count set_up_stale_buffer()
{
	static void *volatile *buffer;

	buffer = static_cast<void *volatile *>(scaffold(TABLE + SIZE));
	fill(buffer + 2, wanted, stale_in_buffer);
	strcpy(reinterpret_cast<char *>(const_cast<void **>(buffer)), "text");
	return each(wanted);
}
