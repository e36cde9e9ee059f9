/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Data that the kernel keeps for one process and does not show in /proc, for the iterators of registers.bpf.c: values
 * of pending signals, and the number of words in pipes, sockets, message queues and requests for I/O, each of which can
 * be the only pointer to a block. Contents are read of signals only.
 *
 * Structures are read while they can change: counts are off by what changes meanwhile, and all loops are bounded.
 */
#pragma once

#include "kernel.h"
#include "process/pids.h"
#include "shared.h"

#include <bpf/bpf_core_read.h>

/* From the kernel's include/linux/fs.h. */
struct super_block___kept {
	unsigned long s_magic;
} __attribute__((preserve_access_index));

struct pipe_buffer___kept {
	unsigned int len;
} __attribute__((preserve_access_index));

/* From include/linux/pipe_fs_i.h. */
struct pipe_inode_info___kept {
	unsigned int head, tail, ring_size;
	struct pipe_buffer___kept *bufs;
} __attribute__((preserve_access_index));

struct inode___kept {
	unsigned short i_mode;
	struct super_block___kept *i_sb;
	struct pipe_inode_info___kept *i_pipe;
} __attribute__((preserve_access_index));

struct dentry___kept {
	struct {
		const char *name;
	} d_name;
} __attribute__((preserve_access_index));

struct file___kept {
	struct {
		struct dentry___kept *dentry;
	} f_path;
	struct inode___kept *f_inode;
	unsigned int f_mode;
	void *private_data;
} __attribute__((preserve_access_index));

/* From kernel/bpf/task_iter.c. */
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u32 fd;
	struct file___kept *file;
} __attribute__((preserve_access_index));

/* From include/linux/skbuff.h, include/net/sock.h, include/linux/net.h and include/net/af_unix.h. */
struct sk_buff___kept {
	struct sk_buff___kept *next;
	unsigned int len;
} __attribute__((preserve_access_index));

struct sk_buff_head___kept {
	struct sk_buff___kept *next;
	u32 qlen;
} __attribute__((preserve_access_index));

struct sock___kept {
	struct {
		unsigned short skc_family;
	} __sk_common;
	struct sk_buff_head___kept sk_receive_queue;
} __attribute__((preserve_access_index));

struct socket___kept {
	struct sock___kept *sk;
} __attribute__((preserve_access_index));

struct unix_sock___kept {
	struct sock___kept *peer;
} __attribute__((preserve_access_index));

/* From include/linux/io_uring_types.h. `cq_extra` is gone, and `nr_req_allocated` came, in Linux 6.16. */
struct io_wq_work_node___kept {
	struct io_wq_work_node___kept *next;
} __attribute__((preserve_access_index));

struct io_ring_ctx___kept {
	unsigned int cached_sq_head, cached_cq_tail, cq_extra, nr_req_allocated;
	struct {
		struct io_wq_work_node___kept free_list;
	} submit_state;
} __attribute__((preserve_access_index));

/* From ipc/mqueue.c. */
struct mqueue_inode_info___kept {
	struct inode___kept vfs_inode;
	unsigned long qsize;
} __attribute__((preserve_access_index));

/* From fs/aio.c. */
struct kioctx_cpu___kept {
	unsigned int reqs_available;
} __attribute__((preserve_access_index));

struct kioctx___kept {
	struct kioctx_cpu___kept *cpu;
	unsigned int nr_events, completed_events;
	struct {
		int counter;
	} reqs_available;
} __attribute__((preserve_access_index));

struct kioctx_table___kept {
	unsigned int nr;
	struct kioctx___kept *table[1];
} __attribute__((preserve_access_index));

struct mm_struct___kept {
	struct kioctx_table___kept *ioctx_table;
} __attribute__((preserve_access_index));

/*
 * From include/linux/signal_types.h: in `info`, the values of a queued signal are the first words behind three numbers.
 */
struct list_head___kept {
	struct list_head___kept *next;
} __attribute__((preserve_access_index));

struct kernel_siginfo___kept {
	int si_code;
} __attribute__((preserve_access_index));

struct sigqueue___kept {
	struct list_head___kept list;
	struct kernel_siginfo___kept info;
} __attribute__((preserve_access_index));

struct sigpending___kept {
	struct list_head___kept list;
} __attribute__((preserve_access_index));

struct signal_struct___kept {
	struct sigpending___kept shared_pending;
} __attribute__((preserve_access_index));

struct task_struct___kept {
	int pid, tgid;
	struct mm_struct___kept *mm;
	struct signal_struct___kept *signal;
	struct sigpending___kept pending;
} __attribute__((preserve_access_index));

/* Kinds of records. */
enum kept_kind {
	/* `words` words are at `data`. */
	KEPT_SIGNAL = 1,
	/* A queue of more signals than are read. */
	KEPT_SIGNALS_LEFT,
	KEPT_PIPE,
	KEPT_SOCKET,
	KEPT_QUEUE,
	KEPT_IO_URING,
	KEPT_AIO,
};

enum {
	KEPT_DATA = 4,
	/* Bits of `f_mode`: FMODE_READ and FMODE_WRITE. */
	KEPT_MODE = 3,
	MAX_KEPT_STEPS = 1 << 14,
	MAX_AIO_CONTEXTS = 1 << 7,
	/*
	 * Pending signals that are read of a thread, or of the process: the records of one task must fit into the
	 * kernel's buffer, 32 KiB.
	 */
	MAX_PENDING = 1 << 7,
};


/* Record of one place, for user space. */
struct kept_place {
	enum kept_kind kind;
	/* Bits of `f_mode` of the descriptor. */
	u32 mode;
	/* Same for all descriptors of a pipe or socket; never 0. */
	u64 id;
	/* Id of the socket that a local one is connected to. */
	u64 peer;
	/* Number of words that can be in it now; for I/O, one for each request. */
	u64 words;
	u64 data[KEPT_DATA];
};

/* Room for one record; one iterator at a time is read. */
struct kept_place kept_place;

enum {
	/* From the kernel's include/uapi/linux/magic.h and stat.h. */
	MAGIC_ANONYMOUS = 0x09041934,
	MAGIC_QUEUE = 0x19800202,
	MODE_KIND = 0170000,
	MODE_PIPE = 0010000,
	MODE_SOCKET = 0140000,
	/* AF_UNIX. */
	FAMILY_UNIX = 1,
};

/* A walk over a structure of the kernel, step by step. */
struct kept_walk {
	void *at;
	void *end;
	u64 sum;
	/* Set once all signals were written. */
	bool is_done;
};

/* Returns the number of whole words: a word of which only a part was written cannot be read as a pointer later. */
static __always_inline u64 words_of(u64 bytes)
{
	return bytes / sizeof(u64);
}

static long add_buffer(u64 number, struct kept_walk *walk)
{
	struct pipe_inode_info___kept *pipe = walk->at;
	u32 slots = BPF_CORE_READ(pipe, ring_size), tail = BPF_CORE_READ(pipe, tail);
	u64 buffers = (u64)BPF_CORE_READ(pipe, bufs);
	u64 slot = (tail + number) & (slots - 1);
	struct pipe_buffer___kept *buffer = (void *)(buffers + slot * bpf_core_type_size(struct pipe_buffer___kept));

	walk->sum += BPF_CORE_READ(buffer, len);
	return 0;
}

/* Returns the unread bytes of a pipe. */
static __always_inline u64 pipe_bytes(struct pipe_inode_info___kept *pipe)
{
	u32 used = BPF_CORE_READ(pipe, head) - BPF_CORE_READ(pipe, tail);
	struct kept_walk walk = { .at = pipe };

	if (!pipe || used > MAX_KEPT_STEPS)
		return 0;
	bpf_loop(used, add_buffer, &walk, 0);
	return walk.sum;
}

static long add_packet(u64 number, struct kept_walk *walk)
{
	struct sk_buff___kept *packet = walk->at;

	if (!packet || packet == walk->end)
		return 1;
	walk->sum += BPF_CORE_READ(packet, len);
	walk->at = BPF_CORE_READ(packet, next);
	return 0;
}

/* Fills in a local socket; returns false for others, which bring no pointers of this process. */
static __always_inline bool see_socket(struct socket___kept *socket)
{
	struct sock___kept *own = BPF_CORE_READ(socket, sk);
	struct unix_sock___kept *unix_socket = (void *)own;
	struct kept_walk walk = {};

	if (!own || BPF_CORE_READ(own, __sk_common.skc_family) != FAMILY_UNIX ||
	    !bpf_core_field_exists(unix_socket->peer))
		return false;
	walk.end = (void *)own + bpf_core_field_offset(own->sk_receive_queue);
	walk.at = BPF_CORE_READ(own, sk_receive_queue.next);
	bpf_loop(MAX_KEPT_STEPS, add_packet, &walk, 0);
	kept_place.id = (u64)own;
	kept_place.peer = (u64)BPF_CORE_READ(unix_socket, peer);
	kept_place.words = words_of(walk.sum);
	return true;
}

static long count_node(u64 number, struct kept_walk *walk)
{
	struct io_wq_work_node___kept *node = walk->at;

	if (!node)
		return 1;
	walk->sum++;
	walk->at = BPF_CORE_READ(node, next);
	return 0;
}

/* Returns the number of an io_uring's requests in flight. */
static __always_inline u64 requests_of(struct io_ring_ctx___kept *ring)
{
	s32 requests = BPF_CORE_READ(ring, cached_sq_head) - BPF_CORE_READ(ring, cached_cq_tail);
	struct kept_walk walk = {};

	if (bpf_core_field_exists(ring->nr_req_allocated) && bpf_core_field_exists(ring->submit_state.free_list)) {
		/* Requests are allocated in batches; unused ones are in a list. */
		walk.at = BPF_CORE_READ(ring, submit_state.free_list.next);
		bpf_loop(MAX_KEPT_STEPS, count_node, &walk, 0);
		requests = BPF_CORE_READ(ring, nr_req_allocated) - walk.sum;
		return requests > 0 ? requests : 0;
	}
	/*
	 * Each request posts one completion at its end, except for those that the kernel counts in `cq_extra` (see
	 * req_need_defer), and with IOSQE_CQE_SKIP_SUCCESS.
	 */
	if (bpf_core_field_exists(ring->cq_extra))
		requests += BPF_CORE_READ(ring, cq_extra);
	return requests < 0 ? -(s64)requests : requests;
}

static __always_inline bool is_io_uring(struct file___kept *file)
{
	/* "[io_uring]" in two words. */
	u64 name[2] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
	return name[0] == 0x6e6972755f6f695bull && name[1] == 0x5d67;
}

/* Fills in the record of a file; returns whether the file is of a kind that can hold words. */
static __always_inline bool see_file(struct file___kept *file)
{
	struct inode___kept *inode = BPF_CORE_READ(file, f_inode);
	u32 kind = BPF_CORE_READ(inode, i_mode) & MODE_KIND;
	u64 magic = BPF_CORE_READ(inode, i_sb, s_magic);
	struct mqueue_inode_info___kept *queue;

	kept_place.id = (u64)inode;
	kept_place.peer = 0;
	kept_place.mode = BPF_CORE_READ(file, f_mode) & KEPT_MODE;
	if (kind == MODE_PIPE) {
		kept_place.kind = KEPT_PIPE;
		kept_place.words = words_of(pipe_bytes(BPF_CORE_READ(inode, i_pipe)));
		return true;
	}
	if (kind == MODE_SOCKET) {
		kept_place.kind = KEPT_SOCKET;
		return see_socket(BPF_CORE_READ(file, private_data));
	}
	if (magic == MAGIC_QUEUE && bpf_core_type_exists(struct mqueue_inode_info___kept)) {
		queue = (void *)inode - bpf_core_field_offset(struct mqueue_inode_info___kept, vfs_inode);
		kept_place.kind = KEPT_QUEUE;
		kept_place.words = words_of(BPF_CORE_READ(queue, qsize));
		return true;
	}
	if (magic == MAGIC_ANONYMOUS && bpf_core_type_exists(struct io_ring_ctx___kept) && is_io_uring(file)) {
		kept_place.kind = KEPT_IO_URING;
		kept_place.id = (u64)BPF_CORE_READ(file, private_data);
		kept_place.words = requests_of((void *)kept_place.id);
		return true;
	}
	return false;
}

/*
 * Returns the number of operations in flight of a context of asynchronous I/O, including those that each CPU has in
 * reserve.
 */
static __always_inline u64 operations_of(struct kioctx___kept *context)
{
	s64 all = BPF_CORE_READ(context, nr_events);
	struct kept_walk walk = { .at = BPF_CORE_READ(context, cpu) };

	/* As aio_setup_ring and ioctx_alloc count: one entry stays unused. */
	walk.sum = 1 + BPF_CORE_READ(context, reqs_available.counter) + BPF_CORE_READ(context, completed_events);
	return all > (s64)walk.sum ? all - walk.sum : 0;
}

/*
 * State of writing a task's pending signals or contexts of asynchronous I/O, one record at a time. If one does not fit,
 * the kernel comes back to the task, and all are read again.
 */
struct kept_task {
	struct seq_file *seq;
	struct kept_walk walk;
};

static __always_inline void write_place(struct seq_file *seq)
{
	bpf_seq_write(seq, &kept_place, sizeof(kept_place));
}

/* Fills in a queued signal. Not static: verified once, by itself. */
__noinline int read_signal(u64 address)
{
	struct sigqueue___kept *entry = (void *)address;
	/* Behind `si_code` and 4 bytes that align what follows. */
	u64 data = (address + bpf_core_field_offset(entry->info.si_code) + sizeof(int) + 7) & ~7ull;

	kept_place.kind = KEPT_SIGNAL;
	kept_place.id = address;
	kept_place.words = KEPT_DATA;
	bpf_probe_read_kernel(kept_place.data, sizeof(kept_place.data), (void *)data);
	return 0;
}

static long write_signal(u64 number, struct kept_task *task)
{
	struct sigqueue___kept *entry = task->walk.at;

	task->walk.is_done = !entry || (void *)entry == task->walk.end;
	if (task->walk.is_done)
		return 1;
	read_signal((u64)entry);
	write_place(task->seq);
	task->walk.at = BPF_CORE_READ(entry, list.next);
	return 0;
}

static __always_inline void write_signals(struct seq_file *seq, struct sigpending___kept *pending)
{
	struct kept_task task = { .seq = seq };

	task.walk.end = (void *)pending + bpf_core_field_offset(pending->list);
	task.walk.at = BPF_CORE_READ(pending, list.next);
	bpf_loop(MAX_PENDING, write_signal, &task, 0);
	if (task.walk.is_done)
		return;
	kept_place.kind = KEPT_SIGNALS_LEFT;
	kept_place.id = (u64)pending;
	write_place(seq);
}

/* Fills in a context of a table; returns whether there is one at this place. Not static: verified once, by itself. */
__noinline int read_context(u64 table, u64 number)
{
	u64 places = table + bpf_core_field_offset(struct kioctx_table___kept, table);
	struct kioctx___kept *context = NULL;

	bpf_probe_read_kernel(&context, sizeof(context), (void *)(places + number * sizeof(context)));
	if (!context)
		return 0;
	kept_place.kind = KEPT_AIO;
	kept_place.id = (u64)context;
	kept_place.words = operations_of(context);
	return 1;
}

static long write_context(u64 number, struct kept_task *task)
{
	if (read_context((u64)task->walk.at, number))
		write_place(task->seq);
	return 0;
}

static __always_inline void write_contexts(struct seq_file *seq, struct mm_struct___kept *mm)
{
	struct kioctx_table___kept *table;
	struct kept_task task = { .seq = seq };
	u32 contexts;

	if (!mm || !bpf_core_field_exists(mm->ioctx_table) || !bpf_core_type_exists(struct kioctx___kept))
		return;
	table = BPF_CORE_READ(mm, ioctx_table);
	if (!table)
		return;
	contexts = BPF_CORE_READ(table, nr);
	task.walk.at = table;
	bpf_loop(contexts < MAX_AIO_CONTEXTS ? contexts : MAX_AIO_CONTEXTS, write_context, &task, 0);
}
