/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Definitions that let headers compile for BPF and for the host (tests/host_bpf). Headers that need the kernel have a
 * named include guard instead of `#pragma once`: a test defines it to provide its own version of the header.
 */
#pragma once

#include "shared.h"

/*
 * Hides a value's origin from the compiler, which would otherwise optimize away checks that the verifier needs to see.
 */
#define OPAQUE(value) asm volatile("" : "+r"(value))

/*
 * Loops with a large body call a function that is not static and so is verified once, by itself. The verifier follows a
 * callback of bpf_loop, or a body in place, for each state of its caller; some kernels do so a million times. It also
 * follows each iteration of a `for`: a loop of many iterations is split into parts, and calls for each part a function
 * with the inner loop.
 */
#define LOOP_PART 64
#define LOOP_PARTS(iterations) (((iterations) + LOOP_PART - 1) / LOOP_PART)

/* An 8-byte slot of a byte buffer; may alias other types. */
typedef u64 __attribute__((may_alias)) stack_slot;
