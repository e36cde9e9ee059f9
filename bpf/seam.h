/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What lets headers compile for BPF and for the host alike (tests/host_bpf). Those that need the kernel itself have a guard
 * with a name instead of `#pragma once`: a test that defines it gives its own in place of theirs.
 */
#pragma once

#include "shared.h"

/* Hides a value's origin from the compiler, which would otherwise undo what the verifier needs to see. */
#define OPAQUE(value) asm volatile("" : "+r"(value))

/* Eight bytes of a byte buffer. */
typedef u64 __attribute__((may_alias)) stack_slot;
