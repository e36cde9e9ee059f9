/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Scratch: the memory for one walk. */
#pragma once

#include "calls/deferred_walk.h"
#include "calls/thread.h"
#include "fast/state.h"
#include "shared.h"

/* Arguments of a walk and of the lookup of its record, see calls/current_stack.h. */
struct wanted_stack {
	u64 pc;
	struct link link;
	u64 owner;
	u32 function;
	/* State of the owner's slot. */
	u64 state;
	u64 view;
	/* Set if a change of the mappings was announced that the view does not contain. */
	bool changing;
	/* Set if the memo was tried: the walk's result is to be stored in it. */
	bool tries_memo;
	/* Number of the chain of Python frames; 0 for none. */
	u32 python;
	/* Copy of the thread's; all zeros if it has none. */
	struct habits habits;
};

struct scratch {
	/* Not 0 while a walk uses the scratch. */
	u64 taken;
	struct wanted_stack wanted;
	struct fast_walk fast;
	/* The description of the walk, if user space is to finish it. */
	struct deferred_walk deferred;
};
