/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs that execute translated copies of code, and that the copy of a breakpoint would kill: a traced process that
 * executes one is stopped before its first instruction, until user space has removed its probes.
 */
#pragma once

#include "config.h"
#include "kernel.h"
#include "process/pids.h"
#include "process/processes.h"
#include "shared.h"

/* SIGSTOP, of x86-64 and AArch64 (the kernel's include/uapi/asm-generic/signal.h). */
#define SIGNAL_STOP 19

/* Returns whether the current program may be one of these by its name; `process::translator` looks closer. */
static __always_inline bool may_translate(void)
{
	struct thread_name name = {};
	u64 first;

	bpf_get_current_comm(name.text, sizeof(name.text));
	__builtin_memcpy(&first, name.text, sizeof(first));
	for (u32 number = 0; number < TRANSLATORS; number++)
		if ((first & translator_masks[number]) == translator_names[number])
			return true;
	return false;
}

/* Handles the exec of the current process, after its instance has begun. */
static __always_inline void stop_if_translated(void)
{
	if (stops_translated && may_translate() && owner_of_process(current_tgid()))
		bpf_send_signal(SIGNAL_STOP);
}
