use super::*;

#[track_caller]
fn check(is: impl Fn(&str) -> bool, yes: &[&str], no: &[&str]) {
    for name in yes {
        assert!(is(name), "{name}");
    }
    for name in no {
        assert!(!is(name), "{name}");
    }
}

/// Functions of the language itself are plumbing; functions that only use its types are not.
#[test]
fn plumbing() {
    check(
        is_plumbing,
        &[
            "operator new(unsigned long)",
            "operator new[](unsigned long, std::nothrow_t const&)",
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
            "void std::vector<A<B>, std::allocator<A<B> > >::_M_realloc_insert<A<B> >(__gnu_cxx::__normal_iterator<A<B>*>)",
            "__gnu_cxx::new_allocator<int>::allocate(unsigned long, void const*)",
            "alloc::raw_vec::finish_grow",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "hashbrown::raw::RawTable<T,A>::reserve_rehash",
            "__rust_alloc",
            "xmalloc",
            "zmalloc_usable",
            "ztrymalloc_usable_internal",
            "g_malloc0_n",
            "CRYPTO_zalloc",
            "sqlite3DbStrDup",
            "PyObject_Malloc",
            "xstrdup.part.0",
            "ngx_pcalloc",
            "_ZSt11make_sharedI4NodeJEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES4_E4typeEEDpOT0_",
        ],
        &[
            "main",
            "Cache::insert(std::string const&)",
            "void app::store<std::string>(std::string)",
            "std_like::grow()",
            "<app::Cache as core::ops::Drop>::drop",
            "app::main::{{closure}}",
            "main::{lambda()#1}::operator()() const",
            "allocate_everything",
            "malloc_trim_loop",
            "pool_alloc",
            "strdup_all(char const*)",
            "connection",
        ],
    );
}

/// Rust's allocators are known by the trait, of any type and in either mangling, and by the compiler's
/// functions before them.
#[test]
fn allocators_of_rust() {
    check(
        is_plumbing,
        &[
            "<mimalloc::MiMalloc as core::alloc::global::GlobalAlloc>::alloc",
            "<mimalloc::MiMalloc as core::alloc::global::GlobalAlloc>::alloc_zeroed",
            "<tikv_jemallocator::Jemalloc as core::alloc::global::GlobalAlloc>::realloc",
            "<app::tracking::Tracking<std::alloc::System> as core::alloc::global::GlobalAlloc>::dealloc",
            "<app::Bump<<app::A as app::Size>::Of> as core::alloc::Allocator>::grow_zeroed",
            "<&bumpalo::Bump as allocator_api2::stable::alloc::Allocator>::shrink",
            "<fn(usize) -> usize as core::alloc::global::GlobalAlloc>::alloc",
            "<app::Tracking as core::alloc::global::GlobalAlloc>::alloc::{closure#0}",
            "__rustc::__rust_alloc_zeroed",
            "__rustc::__rg_alloc",
            "__rg_realloc",
            "__rdl_alloc_zeroed",
        ],
        &[
            "app::Pool::alloc",
            "<app::Pool>::alloc",
            "<app::Pool as app::Alloc>::alloc",
            "<app::Pool as app::core::alloc::Allocator>::allocate",
            "<app::Of<app::A as core::alloc::global::GlobalAlloc> as app::Make>::make",
            "<<app::A as core::alloc::Allocator>::Of as app::Make>::make",
            "app::with::<app::A as core::alloc::Allocator>",
        ],
    );
}

/// `operator new` of a class and `do_allocate` of a memory resource are plumbing; functions that only name
/// them are not.
#[test]
fn allocators_of_cxx() {
    check(
        is_plumbing,
        &[
            "app::Foo::operator new(unsigned long)",
            "app::Foo::operator new[](unsigned long, std::align_val_t)",
            "app::Foo::operator new(unsigned long) [clone .isra.0]",
            "app::Of<int (*)(int)>::operator new(unsigned long)",
            "(anonymous namespace)::Foo::operator new(unsigned long)",
            "app::Foo::operator new",
            "app::Resource::do_allocate(unsigned long, unsigned long)",
            "(anonymous namespace)::Resource::do_allocate(unsigned long, unsigned long) [clone .cold]",
        ],
        &[
            "app::Foo::operator new_type() const",
            "app::Foo::operator newer() const",
            "app::call<&app::Foo::operator new>(int)",
            "app::call(void* (*)(unsigned long)) [with app::Foo::operator new]",
            "app::Pool::do_allocate(int)",
            "app::Pool::allocate(unsigned long)",
            "(anonymous namespace)::allocate(int)",
        ],
    );
}

/// A class's `allocate` is plumbing only if its caller is a container that has the class as its allocator.
#[test]
fn allocators_of_containers() {
    let allocate = "app::Arena<std::_List_node<long> >::allocate(unsigned long) [clone .isra.0]";
    check(
        |caller| is_implementation(allocate, caller),
        &[
            "std::allocator_traits<app::Arena<std::_List_node<long> > >::allocate(app::Arena<std::_List_node<long> >&, unsigned long)",
            "std::__cxx11::_List_base<long, app::Arena<long> >::_M_get_node()",
            "std::_List_node<long>* std::__cxx11::list<long, app::Arena<long> >::_M_create_node<long>(long&&)",
            "std::__1::allocator_traits<app::Derived>::allocate(app::Derived&, unsigned long)",
            "__gnu_cxx::__alloc_traits<app::Arena<int>, int>::allocate(app::Arena<int>&, unsigned long)",
        ],
        &[
            "main",
            "app::Store<app::Arena<long> >::add(long)",
            "std::vector<app::Arena<long>*, std::allocator<app::Arena<long>*> >::resize(unsigned long)",
            "void std::__invoke_impl<void, void (app::Arena<long>::*)(int), app::Arena<long> >(std::__invoke_memfun_deref)",
            "std::function<void (app::Arena<long>)>::operator()(app::Arena<long>) const",
        ],
    );
    let container = "std::vector<int, app::Arena<int> >::_M_default_append(unsigned long)";
    check(
        |name| is_implementation(name, container),
        &["app::Arena<int>::allocate(unsigned long)"],
        &[
            "app::Arena<int>::allocate_all()",
            "app::Other<int>::allocate(unsigned long)",
            "allocate(unsigned long)",
        ],
    );
}

/// Zig's allocators are known by the interface that calls them, and those of its library by their names.
#[test]
fn allocators_of_zig() {
    check(
        is_plumbing,
        &[
            "mem.Allocator.allocBytesWithAlignment__anon_4008",
            "heap.CAllocator.alignedAlloc",
            "heap.arena_allocator.ArenaAllocator.createNode",
            "heap.general_purpose_allocator.GeneralPurposeAllocator(.{}).alloc",
        ],
        &[
            "main.Tracking.alloc",
            "heap.part.0",
            "heap.Tree.alloc",
            "main.leaky",
        ],
    );
    let alloc = "main.Tracking.alloc";
    assert!(is_implementation(alloc, "mem.Allocator.rawAlloc"));
    assert!(!is_implementation(alloc, "main.leaky"));
}

/// C functions whose names by convention mean that they return a block are allocators.
#[test]
fn allocators_of_c() {
    check(
        is_allocation,
        &[
            "sqlite3Malloc",
            "g_slice_alloc0",
            "g_aligned_alloc",
            "_talloc_array",
            "talloc_named_const",
            "g_vasprintf",
            "xasprintf",
            "ruby_xmalloc2.constprop.0",
        ],
        &[
            "std::vector<int>::resize(unsigned long)",
            "alloc",
            "my_alloc",
            "talloc_free",
            "printf",
        ],
    );
}

/// C++ functions that follow the convention of C, by their names, with a size, a text or a block, are
/// allocators.
#[test]
fn allocators_of_cxx_as_in_c() {
    check(
        is_allocation,
        &[
            "xmalloc(unsigned long)",
            "app::xstrdup(char const*)",
            "node::Realloc(void*, unsigned long)",
            "cv::fastMalloc(unsigned long)",
        ],
        &[
            "app::Cache::realloc(app::Key const&, unsigned long)",
            "app::xmalloc()",
            "app::xmalloc(unsigned long) const",
            "app::use<&xmalloc>(unsigned long)",
            "app::mallocs(unsigned long)",
        ],
    );
}

/// Listed functions of runtimes and libraries are allocators.
#[test]
fn known_allocators() {
    check(
        is_allocation,
        &[
            "PyDataMem_UserNEW",
            "PyDataMem_NEW_ZEROED",
            "PyArray_NewFromDescr_int.constprop.0",
            "_PyObject_GC_NewVar",
            "ffi_call",
            "rb_wb_protected_newobj_of",
            "newobj_slowpath_wb_protected",
            "luaM_saferealloc_",
            "_emalloc_128",
            "Perl_sv_grow_fresh",
            "Perl_safesysmalloc",
            "zend_mm_alloc_huge.isra.0",
            "c10::alloc_cpu(unsigned long)",
            "arrow::BufferBuilder::Resize(long, bool)",
            "cv::Mat::create(int, int const*, int)",
            "runtime.asmcgocall.abi0",
            "main._Cfunc_CString",
            "main._Cfunc__CMalloc",
            "_cgo_0123456789ab_Cfunc__Cmalloc",
        ],
        &[
            "rb_str_buf_append",
            "rb_newobject",
            "PyArray_Zeros",
            "app::c10::alloc_cpu_all(unsigned long)",
            "runtime.newobject",
            "main._Cfunc_make",
            "luaM_malloc_all",
            "cv::resize(cv::Mat const&)",
        ],
    );
    assert!(is_of_arrays("c10::alloc_cpu(unsigned long)"));
    assert!(!is_of_arrays("_PyObject_GC_NewVar"));
}

/// Python packages that make arrays are recognized by the directories that they are installed in.
#[test]
fn packages_of_arrays() {
    for (file, package) in [
        (
            "/srv/venv/lib/python3.11/site-packages/numpy/_core/numeric.py",
            Some("numpy"),
        ),
        (
            "/usr/lib/python3/dist-packages/pandas/core/frame.py",
            Some("pandas"),
        ),
        (
            "/a/site-packages/numpy.libs/libscipy_openblas64.so",
            Some("numpy"),
        ),
        ("/a/site-packages/numpyro/infer.py", None),
        ("/a/site-packages/numpy", None),
        ("/srv/numpy/_core/numeric.py", None),
        ("", None),
    ] {
        assert_eq!(package_of_arrays(file), package, "{file}");
    }
}

/// Truncated names and unmatched brackets cause no panic.
#[test]
fn malformed_names() {
    for name in [
        "",
        "<",
        ">",
        "<>",
        "< as ",
        "a::",
        "::allocate",
        "(",
        "é<é>::allocate(",
        "->",
        "operator new",
        "malloc)",
        "malloc(",
        "._Cfunc_",
    ] {
        _ = (is_plumbing(name), is_implementation(name, name), trait_of(name));
    }
}
