/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Hash for stack ids, memos and places of young blocks. */
#pragma once

#include "shared.h"

static __always_inline u64 mix(u64 hash, u64 value)
{
	hash = (hash ^ value) * 0x9fb21c651e98df25ULL;
	return hash ^ hash >> 29;
}
