/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Read-only settings for tracing processes, as in store/store_config.h. */
#ifndef CONFIG_H
#define CONFIG_H

#include "kernel.h"
#include "store/store_config.h"

/* Walk frame pointers only (--unwind fp). */
const volatile bool unwind_by_fp = false;
/* Do not walk at all: every stack is "not walked". For benchmarks. */
const volatile bool unwind_off = false;
/* Let the kernel walk by frame pointers (bpf_get_stackid); stacks are not distinguished. For benchmarks. */
const volatile bool unwind_by_kernel = false;
/* Fast paths of a walk, which do not change its result; false for benchmarks and tests. */
const volatile bool walk_cache = true;
const volatile bool walk_window = true;
const volatile bool walk_memo = true;
/* Repeat each walk without fast paths, and compare. For tests. */
const volatile bool check_walks = false;
/* Trace the children of traced processes too (--follow-fork). */
const volatile bool follow_fork = false;
/* Some calls can end on another thread than they began on, see calls/moving.h. */
const volatile bool calls_move = false;
/* Probes can share an event, and with it a cookie, see calls/cookie.h. */
const volatile bool events_are_shared = false;
/* Stop a traced process that executes a program that translates code (process/translated.h). */
const volatile bool stops_translated = false;
/*
 * First bytes of the command names of such programs, as numbers, and masks of the bytes of a name that are compared
 * with them.
 */
const volatile u64 translator_names[TRANSLATORS] = {};
const volatile u64 translator_masks[TRANSLATORS] = {};
/* Trace page faults (--faults). Mapping calls are then traced only for their effects on pages. */
const volatile bool traces_faults = false;
/* Note the memory that blocks are freed from (--verdict), see process/freed.h. Only set if every block is recorded. */
const volatile bool notes_frees = false;
/* Read the frames of Python (python/chain.h). */
const volatile bool reads_python = false;
/* Masks of records of code objects, of chains and of frames of chains; maximum number of frames that may be used. */
const volatile u32 python_code_mask = 0;
const volatile u32 python_chain_mask = 0;
const volatile u32 python_frame_mask = 0;
const volatile u32 python_frame_capacity = 0;
/* Mask of words of line tables. */
const volatile u32 python_line_mask = 0;
/* Number of "page fault" in the user side's function table. */
const volatile u32 fault_function = 0;
/* Binary logarithm of the bytes of a page. */
const volatile u32 page_shift = 12;
/* Random number that the choice of pages depends on (-s). */
const volatile u64 page_seed = 0;
/* Tell user space of changes by which a process may become one of the selected ones, or cease to be one. */
const volatile bool follow_members = false;
/* Process slots in use, slot 0 included. */
const volatile u32 slot_count = 1;
/* Number of stand-ins (bpf/calls/deferral.h). */
const volatile u32 stand_in_count = 0;
/* Mask of words of the table store. */
const volatile u32 table_mask = 63;
/* Binary logarithm of the number of entries of one mapping list. */
const volatile u32 mapping_bits = 0;
/* Mask of entries of all mapping lists. */
const volatile u32 mapping_mask = 0;
/* Mask of entries of all rule caches. */
const volatile u32 cache_mask = 0;
/* Mask of memos. */
const volatile u32 memo_mask = 0;
/* Inode number of the pid namespace of user space; 0 for the initial one. */
const volatile u32 pid_namespace = 0;
/*
 * Process that memleak has started, by its id in that namespace; 0 for none. It is stopped when it executes another
 * program and, if that is wanted, when it is about to end.
 */
const volatile u32 started_process = 0;

#endif
