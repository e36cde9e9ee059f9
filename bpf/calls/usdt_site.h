/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Arguments of USDT probes, as user space describes them; bpf/shared.h has the limits. */
#pragma once

#include "kernel.h"
#include "shared.h"

/* Location of an argument of a USDT probe. */
enum usdt_kind {
	/* `value`. */
	USDT_CONSTANT = 0,
	/* A register, plus `value`. */
	USDT_REGISTER = 1,
	/*
	 * In the process's memory, at the sum of a register, `value` and, if there is one, a second register times
	 * 2^scale.
	 */
	USDT_MEMORY = 2,
};

struct usdt_argument {
	u64 value;
	/* Offsets in `struct pt_regs`; that of the second register plus 1, 0 if there is none. */
	u16 register_at;
	u16 index_at;
	u8 scale;
	/* enum usdt_kind. */
	u8 kind;
	/* Width: 1, 2, 4 or 8; the bits above are filled with the sign if `is_signed`. */
	u8 bytes;
	u8 is_signed;
};

/* Arguments of a USDT probe, by the number in the cookie of its attach (COOKIE_MODULE). */
struct usdt_site {
	struct usdt_argument arguments[USDT_ARGUMENTS];
};
