//! The functions that are traced: one table, no control flow. To trace another allocator or function, add a
//! row.
//!
//! Other functions are found by prefix, or given by the user: [`Catalog`](super::Catalog), which has room for
//! 256 in all. A module's functions of a family are probed only if it defines one that allocates and one that
//! frees.

use super::functions::{AllocFunction, Family, Presence, ResultAt, Returns, Role, Shape, SizeAt};
use super::usdt;
use Family::{Collector, Cxx, Fault, Jemalloc, Libc, Mimalloc, Rust, Tcmalloc, TcmallocInternal, Usdt};
use SizeAt::{Argument, Copied, Product};
use leak_report::model::Name;

/// Name of page faults among the functions.
pub const PAGE_FAULT: &str = "page fault";

/// Functions that are known by name, the best known name first if one address has several.
#[rustfmt::skip]
pub const FUNCTIONS: &[AllocFunction] = &[
    expected(allocates(Libc, "malloc", Argument(0))),
    expected(allocates(Libc, "calloc", Product(0, 1))),
    expected(resizes(Libc, "realloc", 0, Argument(1))),
    resizes(Libc, "reallocarray", 0, Product(1, 2)),
    expected(stores(Libc, "posix_memalign", 0, Argument(2))),
    expected(allocates(Libc, "aligned_alloc", Argument(1))),
    allocates(Libc, "memalign", Argument(1)),
    allocates(Libc, "valloc", Argument(0)),
    allocates(Libc, "pvalloc", Argument(0)),
    expected(frees(Libc, "free", 0)),
    frees(Libc, "cfree", 0),
    frees(Libc, "free_sized", 0),
    frees(Libc, "free_aligned_sized", 0),
    resizes_or_frees(Libc, "reallocf", 0, Argument(1)),

    throws(Cxx, "_Znwm", Argument(0)),
    allocates(Cxx, "_ZnwmRKSt9nothrow_t", Argument(0)),
    throws(Cxx, "_ZnwmSt11align_val_t", Argument(0)),
    allocates(Cxx, "_ZnwmSt11align_val_tRKSt9nothrow_t", Argument(0)),
    throws(Cxx, "_Znwm12__hot_cold_t", Argument(0)),
    allocates(Cxx, "_ZnwmRKSt9nothrow_t12__hot_cold_t", Argument(0)),
    throws(Cxx, "_ZnwmSt11align_val_t12__hot_cold_t", Argument(0)),
    allocates(Cxx, "_ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t", Argument(0)),
    throws(Cxx, "_Znam", Argument(0)),
    allocates(Cxx, "_ZnamRKSt9nothrow_t", Argument(0)),
    throws(Cxx, "_ZnamSt11align_val_t", Argument(0)),
    allocates(Cxx, "_ZnamSt11align_val_tRKSt9nothrow_t", Argument(0)),
    throws(Cxx, "_Znam12__hot_cold_t", Argument(0)),
    allocates(Cxx, "_ZnamRKSt9nothrow_t12__hot_cold_t", Argument(0)),
    throws(Cxx, "_ZnamSt11align_val_t12__hot_cold_t", Argument(0)),
    allocates(Cxx, "_ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t", Argument(0)),
    throws(Cxx, "__size_returning_new", Argument(0)),
    throws(Cxx, "__size_returning_new_aligned", Argument(0)),
    throws(Cxx, "__size_returning_new_hot_cold", Argument(0)),
    throws(Cxx, "__size_returning_new_aligned_hot_cold", Argument(0)),
    frees(Cxx, "_ZdlPv", 0),
    frees(Cxx, "_ZdlPvm", 0),
    frees(Cxx, "_ZdlPvSt11align_val_t", 0),
    frees(Cxx, "_ZdlPvmSt11align_val_t", 0),
    frees(Cxx, "_ZdlPvRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdlPvmRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdlPvSt11align_val_tRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdlPvmSt11align_val_tRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdaPv", 0),
    frees(Cxx, "_ZdaPvm", 0),
    frees(Cxx, "_ZdaPvSt11align_val_t", 0),
    frees(Cxx, "_ZdaPvmSt11align_val_t", 0),
    frees(Cxx, "_ZdaPvRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdaPvmRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdaPvSt11align_val_tRKSt9nothrow_t", 0),
    frees(Cxx, "_ZdaPvmSt11align_val_tRKSt9nothrow_t", 0),

    allocates(Jemalloc, "mallocx", Argument(0)),
    resizes(Jemalloc, "rallocx", 0, Argument(1)),
    resizes_in_place(Jemalloc, "xallocx", 0, Argument(1)),
    frees(Jemalloc, "dallocx", 0),
    frees(Jemalloc, "sdallocx", 0),

    allocates(Mimalloc, "mi_malloc", Argument(0)),
    allocates(Mimalloc, "mi_zalloc", Argument(0)),
    allocates(Mimalloc, "mi_malloc_small", Argument(0)),
    allocates(Mimalloc, "mi_zalloc_small", Argument(0)),
    allocates(Mimalloc, "mi_malloc_aligned", Argument(0)),
    allocates(Mimalloc, "mi_malloc_aligned_at", Argument(0)),
    allocates(Mimalloc, "mi_zalloc_aligned", Argument(0)),
    allocates(Mimalloc, "mi_zalloc_aligned_at", Argument(0)),
    allocates(Mimalloc, "mi_valloc", Argument(0)),
    allocates(Mimalloc, "mi_pvalloc", Argument(0)),
    allocates(Mimalloc, "mi_new_nothrow", Argument(0)),
    allocates(Mimalloc, "mi_new_aligned_nothrow", Argument(0)),
    allocates(Mimalloc, "mi_calloc", Product(0, 1)),
    allocates(Mimalloc, "mi_mallocn", Product(0, 1)),
    allocates(Mimalloc, "mi_calloc_aligned", Product(0, 1)),
    allocates(Mimalloc, "mi_calloc_aligned_at", Product(0, 1)),
    allocates(Mimalloc, "mi_memalign", Argument(1)),
    allocates(Mimalloc, "mi_aligned_alloc", Argument(1)),
    allocates(Mimalloc, "strdup", Copied { string: 0, length: None }),
    allocates(Mimalloc, "strndup", Copied { string: 0, length: Some(1) }),
    allocates(Mimalloc, "mi_strdup", Copied { string: 0, length: None }),
    allocates(Mimalloc, "mi_strndup", Copied { string: 0, length: Some(1) }),
    allocates(Mimalloc, "mi_heap_strdup", Copied { string: 1, length: None }),
    allocates(Mimalloc, "mi_heap_strndup", Copied { string: 1, length: Some(2) }),
    allocates(Mimalloc, "mi_heap_malloc", Argument(1)),
    allocates(Mimalloc, "mi_heap_zalloc", Argument(1)),
    allocates(Mimalloc, "mi_heap_malloc_small", Argument(1)),
    allocates(Mimalloc, "mi_theap_malloc", Argument(1)),
    for_records(allocates(Mimalloc, "mi_theap_zalloc", Argument(1))),
    allocates(Mimalloc, "mi_theap_malloc_small", Argument(1)),
    allocates(Mimalloc, "mi_theap_zalloc_small", Argument(1)),
    allocates(Mimalloc, "mi_theap_malloc_aligned", Argument(1)),
    allocates(Mimalloc, "mi_theap_calloc", Product(1, 2)),
    resizes(Mimalloc, "mi_theap_realloc", 1, Argument(2)),
    allocates(Mimalloc, "mi_heap_malloc_aligned", Argument(1)),
    allocates(Mimalloc, "mi_heap_malloc_aligned_at", Argument(1)),
    allocates(Mimalloc, "mi_heap_zalloc_aligned", Argument(1)),
    allocates(Mimalloc, "mi_heap_zalloc_aligned_at", Argument(1)),
    allocates(Mimalloc, "mi_heap_calloc", Product(1, 2)),
    allocates(Mimalloc, "mi_heap_mallocn", Product(1, 2)),
    allocates(Mimalloc, "mi_heap_calloc_aligned", Product(1, 2)),
    allocates(Mimalloc, "mi_heap_calloc_aligned_at", Product(1, 2)),
    resizes(Mimalloc, "mi_realloc", 0, Argument(1)),
    resizes(Mimalloc, "mi_rezalloc", 0, Argument(1)),
    resizes(Mimalloc, "mi_expand", 0, Argument(1)),
    resizes(Mimalloc, "mi_realloc_aligned", 0, Argument(1)),
    resizes(Mimalloc, "mi_realloc_aligned_at", 0, Argument(1)),
    resizes(Mimalloc, "mi_rezalloc_aligned", 0, Argument(1)),
    resizes(Mimalloc, "mi_rezalloc_aligned_at", 0, Argument(1)),
    resizes(Mimalloc, "mi_reallocn", 0, Product(1, 2)),
    resizes(Mimalloc, "mi_recalloc", 0, Product(1, 2)),
    resizes(Mimalloc, "mi_reallocarray", 0, Product(1, 2)),
    resizes(Mimalloc, "mi_recalloc_aligned", 0, Product(1, 2)),
    resizes(Mimalloc, "mi_heap_realloc", 1, Argument(2)),
    resizes(Mimalloc, "mi_heap_rezalloc", 1, Argument(2)),
    resizes(Mimalloc, "mi_heap_realloc_aligned", 1, Argument(2)),
    resizes(Mimalloc, "mi_heap_realloc_aligned_at", 1, Argument(2)),
    resizes(Mimalloc, "mi_heap_reallocn", 1, Product(2, 3)),
    resizes(Mimalloc, "mi_heap_recalloc", 1, Product(2, 3)),
    resizes_or_frees(Mimalloc, "mi_reallocf", 0, Argument(1)),
    resizes_or_frees(Mimalloc, "mi_heap_reallocf", 1, Argument(2)),
    stores(Mimalloc, "mi_posix_memalign", 0, Argument(2)),
    throws(Mimalloc, "mi_new", Argument(0)),
    throws(Mimalloc, "mi_new_aligned", Argument(0)),
    throws(Mimalloc, "mi_new_n", Product(0, 1)),
    throws(Mimalloc, "mi_heap_alloc_new", Argument(1)),
    throws(Mimalloc, "mi_heap_alloc_new_n", Product(1, 2)),
    throws(Mimalloc, "mi_theap_alloc_new", Argument(1)),
    throws(Mimalloc, "mi_theap_alloc_new_n", Product(1, 2)),
    throwing(resizes(Mimalloc, "mi_new_realloc", 0, Argument(1))),
    throwing(resizes(Mimalloc, "mi_new_reallocn", 0, Product(1, 2))),
    frees(Mimalloc, "mi_free", 0),
    frees(Mimalloc, "mi_cfree", 0),
    frees(Mimalloc, "vfree", 0),
    frees(Mimalloc, "mi_free_small", 0),
    frees(Mimalloc, "mi_free_small_nonnull", 0),
    frees(Mimalloc, "mi_free_small_local", 0),
    frees(Mimalloc, "mi_free_small_local_nonnull", 0),
    frees(Mimalloc, "mi_free_size", 0),
    frees(Mimalloc, "mi_free_size_aligned", 0),
    frees(Mimalloc, "mi_free_aligned", 0),

    allocates(Tcmalloc, "tc_malloc", Argument(0)),
    allocates(Tcmalloc, "tc_malloc_skip_new_handler", Argument(0)),
    allocates(Tcmalloc, "tc_valloc", Argument(0)),
    allocates(Tcmalloc, "tc_pvalloc", Argument(0)),
    allocates(Tcmalloc, "tc_calloc", Product(0, 1)),
    allocates(Tcmalloc, "tc_memalign", Argument(1)),
    stores(Tcmalloc, "tc_posix_memalign", 0, Argument(2)),
    resizes(Tcmalloc, "tc_realloc", 0, Argument(1)),
    throws(Tcmalloc, "tc_new", Argument(0)),
    allocates(Tcmalloc, "tc_new_nothrow", Argument(0)),
    throws(Tcmalloc, "tc_new_aligned", Argument(0)),
    allocates(Tcmalloc, "tc_new_aligned_nothrow", Argument(0)),
    throws(Tcmalloc, "tc_newarray", Argument(0)),
    allocates(Tcmalloc, "tc_newarray_nothrow", Argument(0)),
    throws(Tcmalloc, "tc_newarray_aligned", Argument(0)),
    allocates(Tcmalloc, "tc_newarray_aligned_nothrow", Argument(0)),
    frees(Tcmalloc, "tc_free", 0),
    frees(Tcmalloc, "tc_cfree", 0),
    frees(Tcmalloc, "tc_free_sized", 0),
    frees(Tcmalloc, "tc_delete", 0),
    frees(Tcmalloc, "tc_delete_sized", 0),
    frees(Tcmalloc, "tc_delete_nothrow", 0),
    frees(Tcmalloc, "tc_delete_aligned", 0),
    frees(Tcmalloc, "tc_delete_sized_aligned", 0),
    frees(Tcmalloc, "tc_delete_aligned_nothrow", 0),
    frees(Tcmalloc, "tc_deletearray", 0),
    frees(Tcmalloc, "tc_deletearray_sized", 0),
    frees(Tcmalloc, "tc_deletearray_nothrow", 0),
    frees(Tcmalloc, "tc_deletearray_aligned", 0),
    frees(Tcmalloc, "tc_deletearray_sized_aligned", 0),
    frees(Tcmalloc, "tc_deletearray_aligned_nothrow", 0),

    allocates(TcmallocInternal, "TCMallocInternalMalloc", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalValloc", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalPvalloc", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalCalloc", Product(0, 1)),
    allocates(TcmallocInternal, "TCMallocInternalMemalign", Argument(1)),
    allocates(TcmallocInternal, "TCMallocInternalAlignedAlloc", Argument(1)),
    stores(TcmallocInternal, "TCMallocInternalPosixMemalign", 0, Argument(2)),
    resizes(TcmallocInternal, "TCMallocInternalRealloc", 0, Argument(1)),
    resizes(TcmallocInternal, "TCMallocInternalReallocArray", 0, Product(1, 2)),
    throws(TcmallocInternal, "TCMallocInternalNew", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalNewNothrow", Argument(0)),
    throws(TcmallocInternal, "TCMallocInternalNewAligned", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalNewAlignedNothrow", Argument(0)),
    throws(TcmallocInternal, "TCMallocInternalNewArray", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalNewArrayNothrow", Argument(0)),
    throws(TcmallocInternal, "TCMallocInternalNewArrayAligned", Argument(0)),
    allocates(TcmallocInternal, "TCMallocInternalNewArrayAlignedNothrow", Argument(0)),
    frees(TcmallocInternal, "TCMallocInternalFree", 0),
    frees(TcmallocInternal, "TCMallocInternalCfree", 0),
    frees(TcmallocInternal, "TCMallocInternalFreeSized", 0),
    frees(TcmallocInternal, "TCMallocInternalFreeAlignedSized", 0),
    frees(TcmallocInternal, "TCMallocInternalSdallocx", 0),
    frees(TcmallocInternal, "TCMallocInternalDelete", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteSized", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteNothrow", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteAligned", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteSizedAligned", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteAlignedNothrow", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteArray", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteArraySized", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteArrayNothrow", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteArrayAligned", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteArraySizedAligned", 0),
    frees(TcmallocInternal, "TCMallocInternalDeleteArrayAlignedNothrow", 0),

    allocates(Collector, "GC_malloc", Argument(0)),
    allocates(Collector, "GC_malloc_atomic", Argument(0)),
    allocates(Collector, "GC_malloc_uncollectable", Argument(0)),
    allocates(Collector, "GC_malloc_atomic_uncollectable", Argument(0)),
    allocates(Collector, "GC_malloc_ignore_off_page", Argument(0)),
    allocates(Collector, "GC_malloc_atomic_ignore_off_page", Argument(0)),
    allocates(Collector, "GC_malloc_stubborn", Argument(0)),
    allocates(Collector, "GC_debug_malloc", Argument(0)),
    allocates(Collector, "GC_debug_malloc_atomic", Argument(0)),
    allocates(Collector, "GC_debug_malloc_uncollectable", Argument(0)),
    allocates(Collector, "GC_memalign", Argument(1)),
    stores(Collector, "GC_posix_memalign", 0, Argument(2)),
    resizes(Collector, "GC_realloc", 0, Argument(1)),
    resizes(Collector, "GC_debug_realloc", 0, Argument(1)),
    frees(Collector, "GC_free", 0),
    frees(Collector, "GC_debug_free", 0),

    allocates(Rust, "__rust_alloc", Argument(0)),
    allocates(Rust, "__rust_alloc_zeroed", Argument(0)),
    resizes(Rust, "__rust_realloc", 0, Argument(3)),
    frees(Rust, "__rust_dealloc", 0),

    allocates(Usdt, usdt::ALLOCATION, Argument(1)),
    frees(Usdt, usdt::FREE, 0),

    // No symbol contains a space, so none has this name.
    allocates(Fault, PAGE_FAULT, Argument(0)),
];

const fn function(family: Family, name: &'static str, role: Role, shape: Shape) -> AllocFunction {
    AllocFunction {
        name: Name::Borrowed(name),
        role,
        shape,
        family,
        returns: Returns::Always,
        presence: Presence::Optional,
        for_records: false,
    }
}

const fn allocates(family: Family, name: &'static str, size: SizeAt) -> AllocFunction {
    let shape = Shape {
        size,
        block: None,
        result: ResultAt::Returned,
    };
    function(family, name, Role::Allocate, shape)
}

const fn stores(family: Family, name: &'static str, result: u8, size: SizeAt) -> AllocFunction {
    let shape = Shape {
        size,
        block: None,
        result: ResultAt::StoredThrough(result),
    };
    function(family, name, Role::Allocate, shape)
}

const fn throws(family: Family, name: &'static str, size: SizeAt) -> AllocFunction {
    throwing(allocates(family, name, size))
}

const fn frees(family: Family, name: &'static str, block: u8) -> AllocFunction {
    let shape = Shape {
        size: SizeAt::Nowhere,
        block: Some(block),
        result: ResultAt::Nowhere,
    };
    function(family, name, Role::Free, shape)
}

const fn resized(block: u8, size: SizeAt) -> Shape {
    Shape {
        size,
        block: Some(block),
        result: ResultAt::Returned,
    }
}

const fn resizes(family: Family, name: &'static str, block: u8, size: SizeAt) -> AllocFunction {
    function(family, name, Role::Resize, resized(block, size))
}

const fn resizes_or_frees(family: Family, name: &'static str, block: u8, size: SizeAt) -> AllocFunction {
    function(family, name, Role::ResizeOrFree, resized(block, size))
}

const fn resizes_in_place(family: Family, name: &'static str, block: u8, size: SizeAt) -> AllocFunction {
    function(family, name, Role::ResizeInPlace, resized(block, size))
}

const fn throwing(mut function: AllocFunction) -> AllocFunction {
    function.returns = Returns::OrThrows;
    function
}

const fn for_records(mut function: AllocFunction) -> AllocFunction {
    function.for_records = true;
    function
}

const fn expected(mut function: AllocFunction) -> AllocFunction {
    function.presence = Presence::Expected;
    function
}
