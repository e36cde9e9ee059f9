/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel's declarations that the BPF side needs: fixed-width types and helpers.
 *
 * Used instead of vmlinux.h: the few fields of kernel structures that are read are declared where they are used, and
 * relocated (CO-RE) to those of the running kernel. `struct pt_regs` depends on the machine (walk/arch.h).
 */
#ifndef KERNEL_H
#define KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	EBUSY = 16,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};

enum {
	BPF_F_NO_PREALLOC = 1 << 0,
};

enum {
	BPF_F_USER_STACK = 1 << 8,
};

enum {
	BPF_RB_NO_WAKEUP = 1 << 0,
	BPF_RB_FORCE_WAKEUP = 1 << 1,
};

enum {
	BPF_RB_AVAIL_DATA = 0,
	BPF_RB_RING_SIZE = 1,
};

enum {
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include <stddef.h>

/* Memory of a size that is not a constant: a record of a ring. Opaque; from the kernel's include/uapi/linux/bpf.h. */
struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));

/* Kernel error numbers that helpers return. */
#define EEXIST 17

#endif
