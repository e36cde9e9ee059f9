/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The proof that a call goes on, bpf/calls/nesting.h, compiled for the host: over memory, mappings and registers that
 * the caller gives. tests/host/nesting.rs loads this as a shared object.
 */
#define __noinline

#define PROCESSES_H

#include "host.c"

static u64 trampoline_address(void)
{
	return trampoline;
}

#define NO_LIST (~0U)

/* One list, whatever the owner. */
static u64 view_of(u64 owner)
{
	return 0;
}

static u32 list_of(u64 view)
{
	return 0;
}

#include "calls/nesting.h"

struct host_call {
	u64 return_slot;
	u64 return_address;
	u64 probed_at;
	u32 module;
	u32 end;
};

/* Registers and module of a function that begins. */
struct host_entry {
	u64 sp;
	u64 link;
	u64 pc;
	u32 module;
};

u32 host_goes_on(struct mapping *given, u32 mapping_count, u64 trampoline_at, read_memory read, void *context,
		 const struct host_call *known, const struct host_entry *entry)
{
	struct call call = {
		.return_slot = known->return_slot,
		.return_address = known->return_address,
		.probed_at = known->probed_at,
		.module = known->module,
		.end = known->end,
	};
	struct pt_regs regs = { .sp = entry->sp, .PROGRAM_COUNTER = entry->pc };
	struct link link = { .lr = entry->link, .known = true };

	read_from = read;
	read_context = context;
	trampoline = trampoline_at;
	mappings = given;
	mapping_bits = __builtin_ctz(mapping_count);
	mapping_mask = mapping_count - 1;
	return goes_on(&call, 0, (struct way_back){ .slot = return_slot(&regs), .link = link }, program_counter(&regs), entry->module);
}
