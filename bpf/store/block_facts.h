/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Facts about blocks beyond their amounts: the threads that allocated them, and how long freed ones have lived. */
#pragma once

#include "shared.h"

enum block_facts {
	/* Low bits of a block's time that have the number of its thread's name; 0 if that has none. */
	THREAD_NAME_BITS = 16,
	/* Maximum number of names; threads with others have none. */
	MAX_THREAD_NAMES = 4096,
	/* Classes of the ages of freed blocks, see store/life_spans.h. */
	LIFE_SPANS = 8,
};

/* Name of a thread, as the kernel has it. */
struct thread_name {
	char text[16];
};

/* Blocks of a stack by how long they lived until they were freed; in units of 2^-WEIGHT_SHIFT if blocks are sampled. */
struct life_spans {
	u64 blocks[LIFE_SPANS];
};

_Static_assert(sizeof(struct life_spans) == 64, "a stack's life spans are one cache line");
