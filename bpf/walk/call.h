/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whether code before a return address is a call. Mirrors unwind-tables/src/walk/call.rs. */
#pragma once

#ifdef __TARGET_ARCH_arm64

/* Whether the last of the 8 code bytes before a return address are `bl`, or `blr` with or without authentication. */
static __always_inline bool ends_in_call(u64 code)
{
	u32 instruction = code >> 32;

	return (instruction & 0xfc000000) == 0x94000000 || (instruction & 0xfffffc1f) == 0xd63f0000 ||
	       (instruction & 0xfefff800) == 0xd63f0800;
}

/* Whether instructions can be at `address`. */
static __always_inline bool is_aligned(u64 address)
{
	return address % 4 == 0;
}

#else

static __always_inline bool is_call(u64 code, u32 length);

/*
 * Whether the 8 code bytes before a return address end in an x86-64 `call`.
 *
 * Direct: e8 and four bytes. Indirect: ff /2 with each length that its ModRM and SIB bytes can ask for.
 */
static __always_inline bool ends_in_call(u64 code)
{
	if ((code >> 24 & 0xff) == 0xe8)
		return true;
	return is_call(code, 2) || is_call(code, 3) || is_call(code, 4) || is_call(code, 5) ||
	       is_call(code, 6) || is_call(code, 7);
}

/* Whether an indirect call of just `length` bytes stands at the end of `code`. */
static __always_inline bool is_call(u64 code, u32 length)
{
	u64 bytes = code >> (64 - 8 * length);
	u32 modrm = bytes >> 8 & 0xff;
	u32 sib = length > 2 ? bytes >> 16 & 0xff : 0;
	u32 mode = modrm >> 6;
	u32 rm = modrm & 7;
	u32 expected = 2;

	if ((bytes & 0xff) != 0xff || (modrm & 0x38) != 0x10)
		return false;
	if (mode != 3 && rm == 4)
		expected += 1;
	if (mode == 1)
		expected += 1;
	else if (mode == 2 || (mode == 0 && (rm == 5 || (rm == 4 && (sib & 7) == 5))))
		expected += 4;
	return expected == length;
}

static __always_inline bool is_aligned(u64 address)
{
	return true;
}

#endif
