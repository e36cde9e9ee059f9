/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What lets the unwinder headers compile for BPF and for the host alike. */
#pragma once

/* Hides a value's origin from the compiler, which would otherwise undo what the verifier needs to see. */
#define OPAQUE(value) asm volatile("" : "+r"(value))

/* Eight bytes of a byte buffer. */
typedef u64 __attribute__((may_alias)) stack_slot;
