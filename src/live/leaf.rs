//! The function that a site is called by: the innermost one of a stack that is not an allocator's or a container's.
//!
//! Almost every stack of C++ begins with `operator new`, and many of Rust and C++ go on in containers. That says
//! nothing about whose memory it is.

use std::borrow::Cow;

use crate::report::{Frame, Stack};

/// Columns of a name that are worth keeping; those of templates have no end.
const LONGEST: usize = 300;

/// What file names of libraries begin with that allocate for others.
const LIBRARIES: [&str; 11] = [
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libc.so",
    "libc-",
    "ld-linux",
    "ld-musl",
    "libtcmalloc",
    "libjemalloc",
    "libmimalloc",
    "libgc.so",
];

/// What paths of functions begin with that allocate for others, inlined or instantiated wherever they are used.
const NAMESPACES: [&str; 7] = [
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "operator new",
    "__rust",
];

/// The name of a site: not printable yet.
pub(super) fn name(stack: &Stack) -> Cow<'_, str> {
    let own = stack.frames.iter().find_map(own_function);
    own.or_else(|| stack.frames.first().map(function))
        .map(shortened)
        .unwrap_or_else(|| format!("[no stack: {}]", stack.end.name()).into())
}

/// The function of a frame, or its place where that has no name.
pub(super) fn function(frame: &Frame) -> Cow<'_, str> {
    match (&frame.names.symbol, &frame.at.place) {
        (Some(symbol), _) => symbol.name.as_str().into(),
        (None, Some((module, svma))) => format!("{}+{svma:#x}", module.basename()).into(),
        (None, None) => format!("{:#x}", frame.at.pc).into(),
    }
}

fn own_function(frame: &Frame) -> Option<Cow<'_, str>> {
    let library = frame.at.place.as_ref().is_some_and(|(module, _)| {
        let name = module.basename();
        LIBRARIES.iter().any(|library| name.starts_with(library))
    });
    if library {
        return None;
    }
    let names = frame
        .names
        .inlined
        .iter()
        .map(|inlined| inlined.symbol.as_deref());
    let inlined = names.flatten().find(|name| !is_plumbing(name));
    match inlined {
        Some(name) => Some(name.into()),
        None => Some(function(frame)).filter(|name| !is_plumbing(name)),
    }
}

/// Whether a function is one of the languages' own.
fn is_plumbing(name: &str) -> bool {
    let begins = |path: &str| NAMESPACES.iter().any(|space| path.starts_with(space));
    match name.strip_prefix('<') {
        // Of Rust's `<alloc::vec::Vec<T> as Trait>::method`, the type says whose method it is.
        Some(type_first) => begins(type_first),
        None => begins(name) || begins(&path_of(name)),
    }
}

/// The path of a demangled function, without template arguments, parameters, and the type that stands before the names
/// of template functions.
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

fn shortened(name: Cow<'_, str>) -> Cow<'_, str> {
    match name.char_indices().nth(LONGEST) {
        None => name,
        Some((end, _)) => format!("{}…", &name[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::{frame, inlined, stack};

    /// Functions of the languages themselves are told from those that use their types.
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
        ] {
            assert!(!is_plumbing(name), "{name}");
        }
    }

    /// The first own function, inlined ones first; without one the innermost frame; without a frame the reason.
    #[test]
    fn sites_have_names() {
        let new = || frame("libstdc++.so.6.0.30", "operator new(unsigned long)");
        let push = || frame("app", "std::vector<int>::push_back(int&&)");
        let insert = || frame("app", "Cache::insert(int)");
        for (frames, expected) in [
            (
                vec![new(), push(), insert(), frame("app", "main")],
                "Cache::insert(int)",
            ),
            (
                vec![new(), inlined("app", "main", &["std::move<int>(int&)", "fill()"])],
                "fill()",
            ),
            (vec![frame("libc.so.6", "strdup"), insert()], "Cache::insert(int)"),
            (vec![frame("libc.so.6", "strdup")], "strdup"),
            (vec![], "[no stack: complete]"),
        ] {
            assert_eq!(name(&stack(frames)), expected);
        }
        let long = name(&stack(vec![frame("app", &"x".repeat(10_000))])).into_owned();
        assert_eq!(long.chars().count(), LONGEST + 1);
    }
}
