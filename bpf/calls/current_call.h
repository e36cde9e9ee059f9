/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The owner of the current thread's calls, and the end of a call whose return is not seen. */
#pragma once

#include "calls/thread.h"
#include "config.h"
#include "counters.h"
#include "process/freed.h"
#include "process/pids.h"
#include "process/processes.h"
#include "store/blocks.h"

/*
 * Returns the owner of the current thread's allocations, or 0 if it is not traced: probes can also fire in other
 * processes.
 */
static __always_inline u64 current_owner(struct thread *thread)
{
	if (thread && owner_is_current(thread->owner))
		return thread->owner;
	return owner_of_process(current_tgid());
}

/* Handles a call whose return was not and will not be seen. */
static __always_inline void end_unseen(u32 instance, struct call *call)
{
	if (call->end != CALL_UNTRACKED && call->end != CALL_LOST) {
		count(COUNTER_ABANDONED_CALL);
		doubt(instance, DOUBT_UNSEEN_END);
	}
	if (call->old_known)
		return_doubtful_block(instance, call->old_address, &call->old);
	call->old_known = false;
}

/* Forgets the thread's current call, whose return was not and will not be seen by it. */
static __always_inline void forget_call(struct thread *thread)
{
	struct call *call = &thread->call;

	if (!call->return_slot)
		return;
	/* A call in `moving_calls` may go on on another thread. */
	if (!calls_move || !call->moves)
		end_unseen(instance_of(thread->owner), call);
	call->return_slot = 0;
}
