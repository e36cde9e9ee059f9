/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Selects the machine: the only check of the target architecture. Both files have the same functions: the registers at
 * a probe, the link register, return addresses and calls, and the equations of plain rules.
 */
#pragma once

#ifdef __TARGET_ARCH_arm64
#include "walk/aarch64.h"
#else
#include "walk/x86_64.h"
#endif
