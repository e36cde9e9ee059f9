/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps for tracing processes; store/store_maps.h says how to read this. */
#ifndef MAPS_H
#define MAPS_H

#include "calls/deferred_walk.h"
#include "calls/thread.h"
#include "calls/usdt_site.h"
#include "fast/state.h"
#include "kernel.h"
#include "process/freed_memory.h"
#include "python/layout.h"
#include "python/walk.h"
#include "shared.h"
#include "store/block_facts.h"
#include "store/store_maps.h"

/* All table images, one after the other. Written by user space; read by walks. Size: --table-memory. */
SEC(".bss.tables") u32 tables[64];

/*
 * Two lists of executable mappings per process slot; only the inactive one is rewritten. Unused entries start above
 * every user address. Written by user space; read by walks. Size: from the target's mappings.
 */
SEC(".bss.mappings") struct mapping mappings[1];

/*
 * Two caches of 2^CACHE_BITS rules per process slot, one per mapping list (fast/rule_cache.h). An entry is a rule of 31
 * bits, a bit that is set if its mapping must be verified, and a tag that makes hits exact. Written by walks; cleared
 * by user space.
 */
SEC(".bss.cache") u64 rule_cache[1];

/*
 * Walk memos, by the registers at the start of the walk; see fast/memo.h. Written and read by walks. Size: a constant
 * of user space; a walk overwrites an older one in the same place.
 */
SEC(".bss.memos") struct memo memos[1];

/* Ages of freed blocks, by index of the stack record. Written by probes; read by user space for reports only, so it
 * is not mapped into user space. Size: as `stacks`; one entry where there are no blocks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct life_spans);
	__uint(max_entries, 1);
} life_spans SEC(".maps");

/*
 * Numbers of the names of threads that allocated. Written and read by probes, when a thread has its first event of a
 * timer tick; read by user space. Not preallocated. Size: MAX_THREAD_NAMES; beyond it, a thread's name is not known.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct thread_name);
	__type(value, u32);
	__uint(max_entries, MAX_THREAD_NAMES);
} thread_names SEC(".maps");

/* Last number that was given to a thread's name. Written and read by probes. */
SEC(".bss.names") u64 last_thread_name;

/* The module whose allocator is probed, if there is only one. Written by user space before it attaches; read by
 * probes. */
SEC(".bss.probed") struct probed {
	/* Number of the only module, plus 1; 0 while no module is probed, ~0 if several are. */
	u64 module;
} probed;

/* Copy of a part of a string whose length is measured (calls/strings.h). Written by probes, never read. */
SEC(".bss.strings") char string_part[1024];

/* Arguments of USDT probes, by number. Written by user space before it attaches; read by probes. */
SEC(".bss.usdt") struct usdt_site usdt_sites[MAX_USDT_SITES];

/*
 * Traced processes, by slot. Lifecycle probes write it when instances begin and end, walks and the loader hook to
 * request a reload of mappings, user space when it publishes mapping lists and frees slots.
 */
SEC(".bss.processes") struct process processes[MAX_PROCESSES];

/* Instances, by number. Written when one begins and ends; read by user space. */
SEC(".bss.instances") struct instance instances[MAX_INSTANCES];

/* Number of the next instance, incremented atomically by both sides, and a mark that both set. */
SEC(".bss.numbers") struct numbers {
	u64 next_instance;
	/* Set with the event of a change among the selected processes, until user space looks: one event is enough. */
	u64 members_changed;
} numbers;

/* Stops of the program that memleak has started, when it executes others; see process/started.h. */
SEC(".bss.started") struct started {
	/* Remaining calls of its loader's hook at which it is stopped. Written by probes. */
	u64 hook_stops;
	/* 1 once user space has ended these stops; 0 before. */
	u64 is_over;
} started;

/* Process id (tgid) to owner, see process/processes.h. Written when instances begin and end; read by probes.
 * Size: MAX_PROCESSES, plus MAX_SHARERS that share a traced process's memory until they exec. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, u32);
	__type(value, u64);
	__uint(max_entries, MAX_PROCESSES + MAX_SHARERS);
} owners SEC(".maps");

/*
 * State of each thread: its allocator call, sampler and habits, at the place that its id selects; see calls/threads.h.
 * Written and read by probes. Size: enough that few threads of some processes share a place; those that do are in
 * `threads`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct thread_place);
	__uint(max_entries, THREAD_PLACES);
} thread_places SEC(".maps");

/* State of each thread whose place is taken by another thread. Written and read by probes; freed with the thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* Calls that can end on another thread; see calls/moving.h. Written and read by probes. Not preallocated. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct call_key);
	__type(value, struct call);
	__uint(max_entries, 16384);
} moving_calls SEC(".maps");

/*
 * Cookies of probes that share an event, by `probe_key` (calls/cookie.h). Written by user space before it attaches;
 * read by probes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u64);
	__uint(max_entries, 4096);
} event_cookies SEC(".maps");

/* Stacks that the kernel's own frame-pointer walk stores. Created for benchmarks only. */
struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, sizeof(u32));
	__uint(value_size, KERNEL_STACK_FRAMES * sizeof(u64));
	__uint(max_entries, 1);
} kernel_stacks SEC(".maps");

/* Events that user space must act on. Few and small: one for the first walk that lacks something, one for the first
 * change of the mappings since the last published list, and one for each begin and end of an instance. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

/* Walks for user space to finish, each with those parts of its stack that have changed; see calls/deferral.h.
 * Written by probes; read by user space at once. Size: thousands of walks. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 * 1024 * 1024);
} deferred_walks SEC(".maps");

/* The parts of stacks that were sent last, by CPU; beyond SENT_STACKS, several CPUs share an entry. Used by probes
 * only. Size: a few more than possible CPUs, for walks that are preempted, but at most SENT_STACKS. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct sent_stack);
	__uint(max_entries, 1);
} sent_stacks SEC(".maps");

/* Stand-ins to be used again: indexes of totals beyond those of stored stacks. Taken by probes; given back by user
 * space. Size: stand_in_count. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(value_size, sizeof(u32));
	__uint(max_entries, 1);
} stand_ins SEC(".maps");

/*
 * Blocks that were freed; see process/freed.h. Written by probes; read by user space. Not preallocated; created with
 * --verdict only. Size: as `blocks`, up to a constant of user space; beyond it, blocks are counted as not noted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block_key);
	__type(value, struct freed_block);
	__uint(max_entries, 1);
} freed_blocks SEC(".maps");

/* Memory that mapping calls gave to processes, by its start. Otherwise as `freed_blocks`; beyond its size, a mapping
 * voids all earlier notes of frees. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block_key);
	__type(value, struct taken_range);
	__uint(max_entries, 65536);
} taken_ranges SEC(".maps");

/* Reliability of these notes, by instance. Written by probes; read by user space. */
SEC(".bss.trust") struct trust trusts[TRUSTS];

/* Location of the frames of a process's Python interpreter, by slot. Written by user space once a probe sees code
 * objects end, and by lifecycle probes; read by probes. */
SEC(".bss.python") struct python_layout python_layouts[MAX_PROCESSES];

/*
 * Room for reading chains of Python frames, by scratch. Used by probes only. Size: as `scratches` if Python is traced.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, u32);
	__type(value, struct python_walk);
	__uint(max_entries, 1);
} python_walks SEC(".maps");

/*
 * Code objects of Python, by number. Written by probes; read by user space in place. Size: a constant of user space;
 * beyond it, functions are unknown.
 */
SEC(".bss.pycodes") struct python_code python_codes[1];

/* Chains of Python frames, by number. As `python_codes`; beyond its size, stacks have no Python frames. */
SEC(".bss.pychains") struct python_chain python_chains[1];

/* Frames of all these chains. As `python_chains`. */
SEC(".bss.pyframes") u64 python_frames[1];

/* Line tables of these code objects. As `python_codes`; beyond its size, functions have no lines. */
SEC(".bss.pylines") u64 python_lines[1];

/* Usage of these stores. Written by probes; read by user space. */
SEC(".bss.pyusage") struct python_usage python_usage;

/* Chains that were found last, each at the place that its hash selects (python/chain.h). Written and read by probes. */
SEC(".bss.pyrecent") u64 python_recent[PYTHON_RECENT];

/* Versions, which tell apart the code objects that follow each other at one address (python/codes.h). Written and
 * read by probes. */
SEC(".bss.pyversions") u32 python_versions[PYTHON_VERSIONS];

/*
 * Address of a code object and instance to the number of its record. Written and read by probes. Size: as
 * `python_codes`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct python_code_key);
	__type(value, u32);
	__uint(max_entries, 1);
} python_code_numbers SEC(".maps");

/* Hash of the content of a code object's record to its number, so that code that is created again and again has one
 * record. Otherwise as `python_code_numbers`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
	__uint(max_entries, 1);
} python_code_contents SEC(".maps");

/* Hash of a chain, as it is stored, to its number. Written and read by probes. Size: as `python_chains`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
	__uint(max_entries, 1);
} python_chain_numbers SEC(".maps");

/*
 * Mapping calls of traced processes, and their page faults, in order. Written by probes; read by user space several
 * times a second, and when a quarter is full. Size: 8 MiB with --mmap, 16 MiB with --faults, a page without; beyond it,
 * they are counted as lost.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} region_events SEC(".maps");

/*
 * A map whose content is not used. The kernel guarantees that an update of a map of maps returns only after every
 * program that was running has ended; user space updates this one to wait until no walk uses the mapping list that was
 * replaced.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, u32);
	__uint(max_entries, 1);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__type(key, u32);
			__type(value, u32);
			__uint(max_entries, 1);
		});
} grace SEC(".maps");

#endif
