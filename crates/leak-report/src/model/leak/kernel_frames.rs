//! Functions that belong to the kernel's allocators, by name. Pure.
//!
//! A kernel stack begins in the BPF program that recorded it, and leads through the tracepoint and the
//! allocator to the caller, where a report's stack begins. Inlining differs between kernels, so the lists
//! contain the names of all kernels since 5.15.

/// Allocator of the kernel; the numbers are those of `enum kernel_allocator` in `bpf/shared.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum KernelAllocator {
    /// `kmalloc` and related functions.
    Kmalloc = 0,
    /// Slab caches (`kmem_cache_alloc`).
    Cache = 1,
    /// Page allocator.
    Pages = 2,
    /// Per-CPU allocator.
    Percpu = 3,
}

impl KernelAllocator {
    /// Converts a number of `enum kernel_allocator`.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Kmalloc, Self::Cache, Self::Pages, Self::Percpu]
            .get(usize::from(number))
            .copied()
    }
}

/// Allocator of a block, as named in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `kmalloc` and related functions.
    Kmalloc,
    /// Slab cache.
    Cache,
    /// Page allocator.
    Pages,
    /// Per-CPU allocator.
    Percpu,
    /// Pages of the slab allocator, for blocks that are counted separately and for large blocks of `kmalloc`.
    SlabPages,
    /// Pages of the per-CPU allocator, whose blocks are counted separately.
    PercpuPages,
}

impl Kind {
    /// Every kind, in numeric order.
    pub const ALL: [Self; 6] = [
        Self::Kmalloc,
        Self::Cache,
        Self::Pages,
        Self::Percpu,
        Self::SlabPages,
        Self::PercpuPages,
    ];

    /// Index in [`Kind::ALL`].
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Converts an index in [`Kind::ALL`].
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Stable name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kmalloc => "kmalloc",
            Self::Cache => "kmem_cache_alloc",
            Self::Pages => "alloc_pages",
            Self::Percpu => "alloc_percpu",
            Self::SlabPages => "slab_pages",
            Self::PercpuPages => "percpu_pages",
        }
    }

    /// Returns whether blocks of this kind contain blocks of another, which are counted separately.
    pub fn holds_others(self) -> bool {
        matches!(self, Self::SlabPages | Self::PercpuPages)
    }
}

impl From<KernelAllocator> for Kind {
    fn from(allocator: KernelAllocator) -> Self {
        match allocator {
            KernelAllocator::Kmalloc => Self::Kmalloc,
            KernelAllocator::Cache => Self::Cache,
            KernelAllocator::Pages => Self::Pages,
            KernelAllocator::Percpu => Self::Percpu,
        }
    }
}

/// Prefixes of the BPF programs and the tracepoint that recorded the stack, whose inline functions some
/// compilers keep.
const TRACING: [&str; 12] = [
    "bpf_prog_",
    "bpf_trampoline_",
    "bpf_trace_run",
    "__bpf_trace_",
    "__traceiter_",
    "bpf_get_stack",
    "ftrace_trampoline",
    "__do_trace_",
    "trace_kmalloc",
    "trace_kmem_cache_alloc",
    "trace_mm_page_alloc",
    "trace_percpu_alloc",
];

/// Function prefixes of the page allocator.
const PAGES: [&str; 12] = [
    "__alloc_pages",
    "alloc_pages",
    "__alloc_frozen_pages",
    "alloc_frozen_pages",
    "__folio_alloc",
    "folio_alloc",
    "vma_alloc_folio",
    "__get_free_pages",
    "get_free_pages",
    "get_zeroed_page",
    "get_page_from_freelist",
    "alloc_pages_bulk",
];

/// Function prefixes of the slab allocator.
const SLABS: [&str; 20] = [
    "__kmalloc",
    "___kmalloc",
    "kmalloc_",
    "__do_kmalloc",
    "kmem_cache_alloc",
    "__kmem_cache_alloc",
    "krealloc",
    "__do_krealloc",
    "kvmalloc",
    "__kvmalloc",
    "kvrealloc",
    "__slab_alloc",
    "___slab_alloc",
    "new_slab",
    "allocate_slab",
    "alloc_slab_page",
    "slab_",
    "refill_sheaf",
    "refill_objects",
    "kmem_cache_prefill",
];

/// Function prefixes of the per-CPU allocator.
const PERCPU: [&str; 3] = ["pcpu_", "__alloc_percpu", "alloc_percpu"];

fn is_any(name: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| name.starts_with(start))
}

/// Given the names of a stack's frames, innermost first, returns the number of frames before the caller, and
/// the allocator.
///
/// Pages taken by the slab allocator or, if it is traced (`percpu`), the per-CPU allocator are recognized by
/// its functions on the way to the caller.
pub fn cut<'a>(
    allocator: KernelAllocator,
    names: impl IntoIterator<Item = Option<&'a str>>,
    percpu: bool,
) -> (usize, Kind) {
    let (mut kind, mut cut) = (Kind::from(allocator), 0);
    for name in names.into_iter().map_while(|name| name) {
        let (slabs, per_cpu) = (is_any(name, &SLABS), is_any(name, &PERCPU));
        if !(slabs || per_cpu || is_any(name, &TRACING) || is_any(name, &PAGES)) {
            break;
        }
        if kind == Kind::Pages && slabs {
            kind = Kind::SlabPages;
        }
        if matches!(kind, Kind::Pages | Kind::SlabPages) && per_cpu && percpu {
            kind = Kind::PercpuPages;
        }
        cut += 1;
    }
    (cut, kind)
}

/// Outermost functions of kernel stacks: system calls, exceptions and interrupts, threads, and CPU startup;
/// for x86-64 (arch/x86/entry, kernel/head_64.S) and arm64 (arch/arm64/kernel/entry.S, head.S).
const ROOTS: [&str; 12] = [
    "entry_SYSCALL",
    "entry_SYSENTER",
    "entry_INT80",
    "asm_",
    "ret_from_fork",
    "secondary_startup_64",
    "common_startup_64",
    "x86_64_start_",
    "start_cpu0",
    "el0t_",
    "__primary_switched",
    "__secondary_switched",
];

/// Returns whether a stack with this outermost function is complete.
pub fn is_root(name: &str) -> bool {
    is_any(name, &ROOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks of several kernels are cut where the caller begins, and their kind depends on which allocator
    /// took the pages.
    #[test]
    fn stacks_begin_at_the_caller() {
        use KernelAllocator::{Cache, Kmalloc, Pages, Percpu};
        for (allocator, names, percpu, caller, kind) in [
            (
                Kmalloc,
                "bpf_prog_1 bpf_trace_run6 __traceiter_kmalloc __kmalloc_cache_noprof do_eventfd",
                false,
                "do_eventfd",
                Kind::Kmalloc,
            ),
            (
                Kmalloc,
                "bpf_prog_1 bpf_trace_run6 __traceiter_kmalloc __do_trace_kmalloc trace_kmalloc __kmalloc_node_noprof load_msg",
                false,
                "load_msg",
                Kind::Kmalloc,
            ),
            (
                Cache,
                "bpf_prog_1 bpf_trace_run5 __bpf_trace_kmem_cache_alloc kmem_cache_alloc sock_alloc_inode alloc_inode",
                false,
                "sock_alloc_inode",
                Kind::Cache,
            ),
            (
                Pages,
                "bpf_prog_1 bpf_trace_run4 __alloc_pages folio_alloc shmem_alloc_folio",
                false,
                "shmem_alloc_folio",
                Kind::Pages,
            ),
            (
                Pages,
                "bpf_prog_1 __alloc_frozen_pages_noprof allocate_slab ___slab_alloc kmem_cache_alloc_noprof getname",
                true,
                "getname",
                Kind::SlabPages,
            ),
            (
                Pages,
                "bpf_prog_1 __alloc_pages_noprof ___kmalloc_large_node __kmalloc_noprof user",
                false,
                "user",
                Kind::SlabPages,
            ),
            (
                Pages,
                "bpf_prog_1 alloc_pages_noprof pcpu_populate_chunk pcpu_alloc_noprof user",
                true,
                "user",
                Kind::PercpuPages,
            ),
            (
                Pages,
                "bpf_prog_1 alloc_pages_noprof pcpu_populate_chunk pcpu_alloc_noprof user",
                false,
                "user",
                Kind::Pages,
            ),
            (
                Percpu,
                "bpf_prog_1 pcpu_alloc_noprof mm_init dup_mm kmem_cache_alloc",
                true,
                "mm_init",
                Kind::Percpu,
            ),
        ] {
            let names: Vec<_> = names.split(' ').collect();
            let (cut, found) = cut(allocator, names.iter().copied().map(Some), percpu);
            assert_eq!((names[cut], found), (caller, kind), "{names:?}");
        }
    }

    /// A function without a name is kept, since it may be the caller.
    #[test]
    fn nameless_functions_are_kept() {
        let names = [Some("bpf_prog_1"), None, Some("__kmalloc")];
        assert_eq!(cut(KernelAllocator::Kmalloc, names, false), (1, Kind::Kmalloc));
    }

    /// A stack is complete where a processor entered the kernel, on either architecture, and nowhere in
    /// between.
    #[test]
    fn stacks_end_where_the_kernel_was_entered() {
        for root in [
            "entry_SYSCALL_64_after_hwframe",
            "asm_exc_page_fault",
            "el0t_64_sync",
            "el0t_32_irq",
        ] {
            assert!(is_root(root), "{root}");
        }
        for inner in [
            "do_syscall_64",
            "el0_svc",
            "el1h_64_irq",
            "invoke_syscall",
            "kthread",
        ] {
            assert!(!is_root(inner), "{inner}");
        }
    }

    /// The number of a kind is its index.
    #[test]
    fn kind_numbers_are_indices() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(Kind::from_number(6), None);
    }
}
