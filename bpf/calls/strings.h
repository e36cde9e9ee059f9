/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sizes of blocks for copies of strings: some allocators have a strdup that calls no other of their functions. */
#pragma once

#include "kernel.h"
#include "maps.h"

/* Parts that are looked at; of a longer string, those are its size. 16 MiB. */
#define MAX_STRING_PARTS ((16 << 20) / sizeof(string_part))

struct string {
	u64 address;
	/* Bytes up to the end of the last part. */
	u64 length;
	u64 max_length;
};

static long add_string_part(u64 number, struct string *string)
{
	/* The copy is not read, and CPUs may write it at the same time. It has a zero at its end in any case. */
	long copied = bpf_probe_read_user_str(string_part, sizeof(string_part), (void *)(string->address + string->length));

	if (copied <= 0)
		return 1;
	string->length += copied - 1;
	return copied < (long)sizeof(string_part) || string->length >= string->max_length;
}

/*
 * Returns the bytes of a copy of the string at `address`, or of its first `max_length` bytes, with a zero at its end.
 * Where memory is not resident, the string counts up to there. Not static: verified once, by itself.
 */
__noinline u64 string_size(u64 address, u64 max_length)
{
	struct string string = { .address = address, .max_length = max_length };

	bpf_loop(MAX_STRING_PARTS, add_string_part, &string, 0);
	return (string.length < max_length ? string.length : max_length) + 1;
}
