//! Responsible frame of a stack: the innermost that does not belong to the allocator, the language runtime or the standard
//! library. It is the title of a site in every format.
//!
//! Almost every C++ stack begins with `operator new`, many continue in containers, and C programs often wrap `malloc` to
//! check for failure. None of these frames identifies the code that wanted the memory. Nor does Python's interpreter between
//! the functions of Python that it runs, nor Python's own library; an extension in C does.

use std::borrow::Cow;

use super::{FrameRef, InlinedFrame, ModuleId, Place, StackRef};

/// File name prefixes of libraries that allocate for others.
const LIBRARIES: [&str; 15] = [
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s.so",
    "libc.so",
    "libc-",
    "libc.musl-",
    "libpthread",
    "ld-linux",
    "ld-musl",
    "libtcmalloc",
    "libjemalloc",
    "libmimalloc",
    "libgc.so",
    "libasan",
];

/// Prefixes of functions that allocate for others: inlined or instantiated where they are used, or statically linked.
const NAMESPACES: [&str; 13] = [
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
    "__rust",
    "__rdl_alloc",
    "asprintf",
    "vasprintf",
];

/// Endings of the names of C functions that return a block to their caller: `xmalloc`, `g_realloc_n`, `sqlite3DbStrDup`.
const ALLOCATOR_ENDINGS: [&str; 13] = [
    "malloc",
    "calloc",
    "realloc",
    "zalloc",
    "valloc",
    "palloc",
    "memalign",
    "strdup",
    "strndup",
    "memdup",
    "reallocarray",
    "g_slice_alloc",
    "ngx_alloc",
];

/// Suffixes that can follow one of [`ALLOCATOR_ENDINGS`].
const ENDING_SUFFIXES: [&str; 12] = [
    "_internal",
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
    "64",
];

/// Responsible function of a stack.
#[derive(Debug)]
pub struct Owner<'a> {
    /// Name of the function, or its address if it has none; not escaped for printing.
    pub function: Cow<'a, str>,
    /// Frame of the function.
    pub frame: FrameRef<'a>,
    /// Index of the frame, and of the function among those inlined there; for the frame's own function, their number.
    pub at: (usize, usize),
}

impl Owner<'_> {
    /// Name of the function where its file does not stand beside it.
    pub fn alone(&self) -> Cow<'_, str> {
        match self.frame.is_python() {
            true => with_file(&self.function, self.frame.file()),
            false => Cow::Borrowed(&self.function),
        }
    }
}

/// Finds the responsible function. If every frame belongs to an allocator, a runtime or a standard library, returns the
/// innermost, of Python if there is one; `None` for a stack without frames.
pub fn owner(stack: StackRef<'_>) -> Option<Owner<'_>> {
    let interpreters = Interpreters::of(stack);
    let own = |(number, frame)| {
        if interpreters.contain(frame) {
            return None;
        }
        let (function, inlined) = own_function(frame)?;
        Some(Owner {
            function,
            frame,
            at: (number, inlined),
        })
    };
    let innermost = || {
        let python = stack.frames().position(FrameRef::is_python);
        let number = python.unwrap_or(0);
        let frame = stack.frames().nth(number)?;
        Some(Owner {
            function: function(frame),
            frame,
            at: (number, frame.inlined().len()),
        })
    };
    stack.frames().enumerate().find_map(own).or_else(innermost)
}

/// Modules of the interpreters that run the Python functions of a stack.
///
/// They are known by the frame that runs a function, the next one outwards: a program can contain the interpreter or load it
/// as a library, and many of its functions have no name.
pub(super) struct Interpreters(Vec<ModuleId>);

impl Interpreters {
    /// Interpreters of a stack; none if no function of Python is in it.
    pub(super) fn of(stack: StackRef<'_>) -> Self {
        let mut modules = Vec::new();
        let callers = stack.frames().skip(1);
        for (frame, caller) in stack.frames().zip(callers) {
            let place = caller
                .at
                .place
                .filter(|_| frame.is_python() && !caller.is_python());
            modules.extend(
                place
                    .map(|place| place.module)
                    .filter(|module| !modules.contains(module)),
            );
        }
        Self(modules)
    }

    /// True for a native frame of one of them.
    pub(super) fn contain(&self, frame: FrameRef<'_>) -> bool {
        let place = frame.at.place.filter(|_| !frame.is_python());
        place.is_some_and(|place| self.0.contains(&place.module))
    }
}

/// Functions of a stack from the responsible one outwards, including inlined ones, without those of a Python interpreter; not
/// escaped for printing.
pub fn callers(stack: StackRef<'_>) -> impl Iterator<Item = Cow<'_, str>> {
    let (first, inlined) = owner(stack).map_or((0, 0), |owner| owner.at);
    let interpreters = Interpreters::of(stack);
    let frames = stack.frames().enumerate().skip(first);
    let frames = frames.filter(move |&(number, frame)| number == first || !interpreters.contain(frame));
    let functions = frames.flat_map(|(_, frame)| {
        let inlined = frame
            .inlined()
            .map(|inlined| Cow::from(inlined.symbol.unwrap_or("[unknown]")));
        let own = match frame.function() {
            Some(name) if frame.is_python() => with_file(name, frame.file()),
            Some(_) | None => function(frame),
        };
        inlined.chain([own])
    });
    functions.skip(inlined)
}

/// True for a frame without a name in the library of a runtime or an allocator.
pub fn is_nameless_runtime(frame: FrameRef<'_>) -> bool {
    frame.symbol().is_none() && frame.inlined().len() == 0 && is_in_library(frame)
}

fn is_in_library(frame: FrameRef<'_>) -> bool {
    frame.module().is_some_and(|module| {
        let name = module.basename();
        LIBRARIES.iter().any(|library| name.starts_with(library)) || is_python_extension(module.path())
    })
}

/// True for an extension in C that comes with Python.
fn is_python_extension(path: &str) -> bool {
    path.contains("/python3") && path.contains("/lib-dynload/")
}

/// Name of a frame's function, or its address (`module+svma`) if it has none.
pub fn function(frame: FrameRef<'_>) -> Cow<'_, str> {
    match (frame.function(), frame.place()) {
        (Some(name), _) => name.into(),
        (None, Some(Place { module, svma })) => format!("{}+{svma:#x}", module.basename()).into(),
        (None, None) => format!("{:#x}", frame.pc()).into(),
    }
}

/// Name of a function of Python where its file does not stand beside it. `<module>` and the like say nothing without the file.
pub fn with_file<'a>(name: &'a str, file: Option<&str>) -> Cow<'a, str> {
    match file.filter(|_| name.starts_with('<')) {
        Some(file) => format!("{name} {}", file.rsplit('/').next().unwrap_or(file)).into(),
        None => name.into(),
    }
}

/// True for each function of a frame that belongs to an allocator, a runtime or a standard library: the inlined ones, then
/// the frame's own.
pub fn plumbing(frame: FrameRef<'_>) -> Vec<bool> {
    let is_library = is_in_library(frame);
    let inlined = frame.inlined().map(is_inlined_plumbing);
    let own = is_own_plumbing(frame);
    inlined
        .chain([own])
        .map(|is_plumbing| is_plumbing || is_library)
        .collect()
}

fn is_own_plumbing(frame: FrameRef<'_>) -> bool {
    match frame.is_python() {
        // What a function of C is called says nothing about one of Python.
        true => frame.file().is_some_and(is_python_library),
        false => is_plumbing(&function(frame)) || is_standard_source(frame.file()),
    }
}

/// True for a source file of Python's library, but not of what was installed there.
fn is_python_library(file: &str) -> bool {
    let is_installed = file.contains("/site-packages/") || file.contains("/dist-packages/");
    file.starts_with("<frozen ") || file.contains("/lib/python3") && !is_installed
}

fn own_function(frame: FrameRef<'_>) -> Option<(Cow<'_, str>, usize)> {
    if is_in_library(frame) {
        return None;
    }
    let is_own = |(function, _): &(InlinedFrame<&str>, _)| {
        function.symbol.is_some() && !is_inlined_plumbing(*function)
    };
    match frame.inlined().zip(0..).find(is_own) {
        Some((function, number)) => Some((function.symbol?.into(), number)),
        None if is_own_plumbing(frame) => None,
        None => Some((function(frame), frame.inlined().len())),
    }
}

/// True for an inlined function that allocates for others. Debug information can omit the namespace of such a function; its
/// source file then identifies it.
pub fn is_inlined_plumbing(function: InlinedFrame<&str>) -> bool {
    function.symbol.is_some_and(is_plumbing) || is_standard_source(function.file)
}

/// True for a source file of a standard library: GNU's or LLVM's for C++, or Rust's.
fn is_standard_source(file: Option<&str>) -> bool {
    let is_standard = |file: &str| {
        file.contains("/include/c++/") || file.starts_with("/rustc/") && file.contains("/library/")
    };
    file.is_some_and(is_standard)
}

/// True for the name of a function that allocates for others, and so does not identify who wanted the memory.
pub fn is_plumbing(name: &str) -> bool {
    let begins = |path: &str| NAMESPACES.iter().any(|space| path.starts_with(space));
    match name.strip_prefix('<') {
        // In Rust's `<alloc::vec::Vec<T> as Trait>::method`, the type comes first and owns the method.
        Some(type_first) => begins(type_first),
        None => begins(name) || begins(&path_of(name)) || is_allocator(name),
    }
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

/// Path of a demangled function, without template arguments, parameters, and the return type that precedes the names of
/// template functions.
fn path_of(name: &str) -> String {
    let mut path = String::new();
    let mut depth = 0_usize;
    for character in name.chars() {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            '(' => break,
            ' ' => path.clear(),
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of the language itself are plumbing; functions that only use its types are not.
    #[test]
    fn plumbing() {
        for name in [
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
        ] {
            assert!(is_plumbing(name), "{name}");
        }
        for name in [
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
        ] {
            assert!(!is_plumbing(name), "{name}");
        }
    }
}
