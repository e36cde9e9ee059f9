//! Names of functions that allocate for others.
//!
//! A function is recognized by what it is, not by any word in its name: it belongs to a standard library,
//! implements an interface of allocators, or is a C function whose name by convention means that it returns a
//! block to its caller. A function that is merely called `alloc` counts as the program's own.

mod known;
mod path;

use path::{Path, arguments, is_of_type, trait_of};

/// Prefixes of functions that allocate for others: inlined or instantiated where they are used, or statically
/// linked.
const NAMESPACES: [&str; 24] = [
    // Mangled names, if demangling fails.
    "_ZSt",
    "_ZNSt",
    "_ZNKSt",
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "operator new",
    // Rust's functions between `alloc::alloc` and the global allocator: the compiler's own, the default's,
    // the program's.
    "__rust",
    "__rdl_",
    "__rg_",
    "asprintf",
    "vasprintf",
    // Functions that talloc's macros expand to.
    "_talloc_",
    // Zig's interface of allocators, and those of its library; names of Zig's library begin without `std`.
    "mem.Allocator.",
    "heap.CAllocator.",
    "heap.PageAllocator.",
    "heap.FixedBufferAllocator.",
    "heap.SmpAllocator.",
    "heap.arena_allocator.",
    "heap.debug_allocator.",
    "heap.general_purpose_allocator.",
    "heap.memory_pool.",
];

/// Endings of the names of C functions that return a block to their caller: `xmalloc`, `g_realloc_n`,
/// `sqlite3DbStrDup`.
const ALLOCATOR_ENDINGS: [&str; 20] = [
    "malloc",
    "calloc",
    "realloc",
    "zalloc",
    "valloc",
    "palloc",
    "memalign",
    "aligned_alloc",
    "strdup",
    "strndup",
    "strdup_printf",
    "strdup_vprintf",
    "memdup",
    "reallocarray",
    "asprintf",
    "g_slice_alloc",
    "ngx_alloc",
    "_talloc_array",
    "talloc_named",
    "talloc_named_const",
];

/// Suffixes that can follow one of [`ALLOCATOR_ENDINGS`].
const ENDING_SUFFIXES: [&str; 14] = [
    "_internal",
    "_body",
    "_usable",
    "_array",
    "_impl",
    "_raw",
    "_ex",
    "raw",
    "zero",
    "_n",
    "n",
    "0",
    "2",
    "64",
];

/// Traits that Rust's allocators implement; the last one (crate `allocator-api2`) takes the place of the
/// second on stable Rust.
const RUST_TRAITS: [&str; 3] = [
    "core::alloc::global::GlobalAlloc",
    "core::alloc::Allocator",
    "allocator_api2::stable::alloc::Allocator",
];

/// Virtual function by which C++'s memory resources allocate; its parameters are the number of bytes and
/// their alignment.
const OF_RESOURCE: &str = "::do_allocate(unsigned long, unsigned long)";

/// True for the name of a function that allocates for others, and so does not identify who wanted the memory.
pub fn is_plumbing(name: &str) -> bool {
    let begins = |path: &str| NAMESPACES.iter().any(|space| path.starts_with(space));
    match name.strip_prefix('<') {
        // In Rust's `<alloc::vec::Vec<T> as Trait>::method`, the type comes first and owns the method.
        Some(type_first) => begins(type_first) || is_of_trait(name),
        None => begins(name) || begins(&Path::of(name).without_arguments()) || is_allocation(name),
    }
}

/// True for the name of a function that returns a block to its caller, whatever language it is written in.
pub(super) fn is_allocation(name: &str) -> bool {
    let is_known = || {
        let path = Path::of(name).without_arguments();
        known::contains(known::FUNCTIONS, name, &path) || known::contains(known::OF_ARRAYS, name, &path)
    };
    is_allocator(name)
        || is_operator_new(name)
        || is_of_trait(name)
        || is_of_resource(name)
        || is_like_c(name)
        || is_made_by_cgo(name)
        || is_known()
}

/// True for the name of a function that allocates arrays.
pub(super) fn is_of_arrays(name: &str) -> bool {
    known::contains(known::OF_ARRAYS, name, &Path::of(name).without_arguments())
}

/// Python package that a file belongs to, if it is one that makes arrays for others: `numpy` of
/// `…/site-packages/numpy/_core/numeric.py`.
pub(super) fn package_of_arrays(file: &str) -> Option<&'static str> {
    let directories = ["/site-packages/", "/dist-packages/"];
    let (_, inside) = directories
        .iter()
        .find_map(|directory| file.split_once(directory))?;
    let (package, _) = inside.split_once('/')?;
    // Libraries bundled with a package are in a directory beside it.
    let package = package.strip_suffix(".libs").unwrap_or(package);
    known::PACKAGES.into_iter().find(|&known| known == package)
}

/// True for a C++ function that by the convention of C returns a block: its name is like those, and all its
/// parameters are numbers, text or `void` pointers, as for a size and a block (`xmalloc(unsigned long)`).
fn is_like_c(name: &str) -> bool {
    const TYPES: [&str; 8] = [
        "unsigned long",
        "unsigned int",
        "long",
        "int",
        "void*",
        "void const*",
        "char*",
        "char const*",
    ];
    let Some((path, parameters)) = name.strip_suffix(')').and_then(|name| name.split_once('(')) else {
        return false;
    };
    let base = path.rsplit("::").next().unwrap_or(path);
    let mut parameters = parameters.split(", ");
    is_allocator(base) && parameters.all(|parameter| TYPES.contains(&parameter))
}

/// True for the functions of Go by which cgo calls `malloc`, in the package that uses them:
/// `main._Cfunc_CString`.
fn is_made_by_cgo(name: &str) -> bool {
    let base = name.split_once("._Cfunc_").map(|(_, base)| base);
    base.is_some_and(|base| ["_CMalloc", "CString", "CBytes"].contains(&base.trim_end_matches(".abi0")))
}

/// True for a function that implements an interface of allocators, if `caller`, which calls it, is the
/// interface.
///
/// The name of the function itself does not show that: in C++, an allocator of a container is any class with
/// a member `allocate`; in Zig, a table of functions with any names.
pub(super) fn is_implementation(name: &str, caller: &str) -> bool {
    caller.starts_with("mem.Allocator.") || is_of_container(name, caller)
}

/// True for `allocate` of a class that is a template argument of the caller, which is a C++ container or what
/// libstdc++ and libc++ have between containers and allocators.
fn is_of_container(name: &str, caller: &str) -> bool {
    if !name.contains("::allocate") {
        return false;
    }
    let (path, caller) = (Path::of(name), Path::of(caller));
    let (Some((allocator, "allocate" | "allocate_at_least")), Some((container, _))) =
        (path.split(), caller.split())
    else {
        return false;
    };
    let is_of_library = container.starts_with("std::") || container.starts_with("__gnu_cxx::");
    // The argument can be an instance for another type: a list allocates nodes.
    is_of_library
        && arguments(container).any(|argument| is_of_type(argument, allocator) || is_traits(container))
}

/// True for the traits classes by which C++'s containers call every allocator. An allocator can inherit the
/// member, so the class of the member need not be the argument.
fn is_traits(container: &str) -> bool {
    let (template, _) = container.split_once('<').unwrap_or((container, ""));
    template.ends_with("::allocator_traits") || template.ends_with("::__alloc_traits")
}

/// True for a method of a type's implementation of one of [`RUST_TRAITS`].
fn is_of_trait(name: &str) -> bool {
    trait_of(name).is_some_and(|name| RUST_TRAITS.contains(&name))
}

/// True for C++'s `operator new` and `operator new[]`, also of a class.
fn is_operator_new(name: &str) -> bool {
    const OPERATOR: &str = "operator new";
    let is_here = |(at, _): (usize, &str)| {
        let (before, rest) = (&name[..at], &name[at + OPERATOR.len()..]);
        // `operator new_type` converts.
        let is_whole = rest.is_empty() || rest.starts_with(['(', '[', ' ', '<']);
        // In parameters or arguments, it belongs to another function.
        let is_own = before.is_empty() || before.ends_with("::") && path::is_closed(before);
        is_whole && is_own
    };
    name.match_indices(OPERATOR).any(is_here)
}

fn is_of_resource(name: &str) -> bool {
    let (name, _) = name.split_once(" [clone ").unwrap_or((name, ""));
    name.ends_with(OF_RESOURCE)
}

/// True for the name of a C function that returns a block to its caller.
fn is_allocator(name: &str) -> bool {
    let is_identifier = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '.');
    if name.len() > 64 || !name.chars().all(is_identifier) {
        return false;
    }
    // Without the compiler's suffix (`.part.0`).
    let base = name.split('.').next().unwrap_or(name).to_ascii_lowercase();
    let mut base = base.as_str();
    loop {
        if ALLOCATOR_ENDINGS.iter().any(|ending| base.ends_with(ending)) {
            return true;
        }
        let shorter = ENDING_SUFFIXES
            .iter()
            .find_map(|suffix| base.strip_suffix(suffix));
        match shorter {
            Some(shorter) if !shorter.is_empty() => base = shorter,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests;
