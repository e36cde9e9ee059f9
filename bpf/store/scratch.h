/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Room for a walk. */
#pragma once

#include "calls/thread.h"
#include "fast/window.h"
#include "shared.h"

/* The stack that is asked for: of which owner, by which function called from where. */
struct wanted_stack {
	u64 pc;
	struct link link;
	u64 owner;
	u32 function;
	/* Of the owner's slot; what the walk uses of it; whether a change is announced that this does not have. */
	u64 state;
	u64 view;
	bool changing;
	/* A memo was looked at: what is found is to be in it. */
	bool tries_memo;
	/* A copy; nothing but zeros when the thread has none. */
	struct habits habits;
};

struct scratch {
	/* Not 0 while a walk uses this. */
	u64 taken;
	struct wanted_stack wanted;
	struct fast_walk fast;
};
