//! Functions of runtimes and libraries that return blocks to their callers, and whose names do not show it.
//!
//! To add functions, add a line with the project and its source files, and the names. A name is complete or
//! ends with `*`; a C++ name is without template arguments and parameters. A function belongs here if it only
//! passes on the block that it got, so that its caller tells more about the allocation.

/// Functions of one project.
pub(super) struct Known {
    /// Project, and the files that define the functions.
    _of: &'static str,
    names: &'static [&'static str],
}

const fn known(of: &'static str, names: &'static [&'static str]) -> Known {
    Known { _of: of, names }
}

/// Functions that allocate for others.
pub(super) const FUNCTIONS: &[Known] = &[
    known(
        "CPython: Objects/obmalloc.c, Objects/object.c, Objects/typeobject.c, Modules/gcmodule.c",
        &[
            "PyType_GenericAlloc",
            "_PyType_AllocNoTrack",
            "_PyObject_New",
            "_PyObject_NewVar",
            "_PyObject_GC_New",
            "_PyObject_GC_NewVar",
            "_PyObject_GC_Alloc",
            "_PyObject_GC_Resize",
            "_PyMem_DebugRawAlloc",
            "_PyMem_ArenaAlloc",
            "_PyObject_ArenaMmap",
            "pymalloc_alloc",
            "allocate_from_new_pool",
            "new_arena",
        ],
    ),
    known(
        "libffi, by which scripts call C: src/x86/ffi64.c, src/aarch64/ffi.c; CPython: Modules/_ctypes/callproc.c, _ctypes.c",
        &[
            "ffi_call",
            "ffi_call_int",
            "_call_function_pointer",
            "_ctypes_callproc",
            "PyCFuncPtr_call",
        ],
    ),
    known(
        "Ruby: gc.c, gc/default/default.c",
        &[
            "rb_newobj",
            "rb_newobj_of",
            "rb_wb_protected_newobj_of",
            "rb_wb_unprotected_newobj_of",
            "rb_ec_wb_protected_newobj_of",
            "newobj_*",
            "heap_page_*",
            "rb_data_object_wrap",
            "rb_data_object_make",
            "rb_data_typed_object_wrap",
            "rb_data_typed_object_make",
            "rb_alloc_tmp_buffer*",
            "rb_xmalloc_mul_add*",
            "rb_xcalloc_mul_add*",
            "rb_xrealloc_mul_add*",
        ],
    ),
    known(
        "Lua: lauxlib.c, lmem.c, lgc.c; LuaJIT: lj_gc.c",
        &[
            "l_alloc",
            "luaM_malloc_",
            "luaM_realloc_",
            "luaM_saferealloc_",
            "luaM_growaux_",
            "luaC_newobj",
            "luaC_newobjdt",
            "lj_mem_newgco",
            "lj_mem_grow",
        ],
    ),
    known("PHP: Zend/zend_alloc.c", &["_emalloc_*", "zend_mm_*"]),
    known(
        "Perl: sv.c, util.c",
        &[
            "Perl_sv_grow*",
            "Perl_more_bodies",
            "Perl_more_sv",
            "Perl_savepv*",
            "Perl_savesharedpv*",
        ],
    ),
    known("Node.js: src/util.cc, src/util-inl.h", &["node::Unchecked*"]),
    known(
        "Go: runtime/cgocall.go, and what cmd/cgo makes",
        &["runtime.cgocall*", "runtime.asmcgocall*", "_cgo_cmalloc"],
    ),
];

/// Allocators of the arrays that packages make for others.
pub(super) const OF_ARRAYS: &[Known] = &[
    known(
        "numpy: numpy/_core/src/multiarray/alloc.c, ctors.c",
        &[
            "PyDataMem_*",
            "npy_alloc_cache*",
            "_npy_alloc_cache*",
            "default_malloc",
            "default_calloc",
            "default_realloc",
            "PyArray_NewFromDescr*",
        ],
    ),
    known(
        "PyTorch: c10/core/impl/alloc_cpu.cpp, c10/core/CPUAllocator.cpp, aten/src/ATen/EmptyTensor.cpp",
        &[
            "c10::alloc_cpu",
            "c10::DefaultCPUAllocator::allocate",
            "c10::StorageImpl::StorageImpl",
            "at::detail::empty_*",
            "at::detail::_empty_*",
        ],
    ),
    known(
        "Arrow: cpp/src/arrow/memory_pool.cc, buffer_builder.h",
        &[
            "arrow::BaseMemoryPoolImpl::*",
            "arrow::(anonymous namespace)::SystemAllocator::*",
            "arrow::(anonymous namespace)::JemallocAllocator::*",
            "arrow::(anonymous namespace)::MimallocAllocator::*",
            "arrow::PoolBuffer::*",
            "arrow::BufferBuilder::*",
            "arrow::TypedBufferBuilder::*",
            "arrow::AllocateBuffer",
            "arrow::AllocateResizableBuffer",
        ],
    ),
    known(
        "OpenCV: modules/core/src/alloc.cpp, matrix.cpp",
        &[
            "cv::fastMalloc",
            "cv::StdMatAllocator::allocate",
            "cv::Mat::create",
        ],
    ),
];

/// Python packages that make arrays for their callers, by the directories that they are installed in.
pub(super) const PACKAGES: [&str; 10] = [
    "PIL", "cv2", "h5py", "jaxlib", "numpy", "pandas", "polars", "pyarrow", "scipy", "torch",
];

/// True if one of the functions has this name, with parameters or without (`path`).
pub(super) fn contains(all: &[Known], name: &str, path: &str) -> bool {
    // Without the compiler's suffix (`.part.0`). The first dot does not show where that begins: names of Go
    // contain dots.
    let plain = [".part.", ".constprop.", ".isra.", ".cold", ".abi0"]
        .iter()
        .find_map(|suffix| name.find(suffix))
        .map_or(name, |at| &name[..at]);
    let is = |known: &str| match known.strip_suffix('*') {
        Some(begin) => name.starts_with(begin) || path.starts_with(begin),
        None => plain == known || path == known,
    };
    all.iter().flat_map(|known| known.names).any(|known| is(known))
}
