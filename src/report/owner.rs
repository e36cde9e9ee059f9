//! Whose memory it is: the innermost function of a stack that is not an allocator's or a container's.
//!
//! Almost every stack of C++ begins with `operator new`, and many of Rust and C++ go on in containers. That says
//! nothing about whose memory it is.

use std::borrow::Cow;

use super::{Frame, Stack};

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

/// What paths of functions begin with that allocate for others, inlined or instantiated wherever they are used, or bound to
/// a program of its own.
const NAMESPACES: [&str; 14] = [
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "operator new",
    "__rust",
    "__rdl_alloc",
    "strdup",
    "strndup",
    "__strdup",
    "__strndup",
    "asprintf",
    "vasprintf",
];

/// Who wanted the memory, as far as a stack says.
#[derive(Debug)]
pub(crate) struct Owner<'a> {
    /// The function, or its place where that has no name; not printable yet.
    pub(crate) function: Cow<'a, str>,
    /// The frame that it is in.
    pub(crate) frame: &'a Frame,
}

/// The innermost function that is no plumbing; the innermost of all where there is none. `None` without a frame.
pub(crate) fn owner(stack: &Stack) -> Option<Owner<'_>> {
    let own = |frame| {
        let function = own_function(frame)?;
        Some(Owner { function, frame })
    };
    let innermost = || {
        let frame = stack.frames.first()?;
        let function = function(frame);
        Some(Owner { function, frame })
    };
    stack.frames.iter().find_map(own).or_else(innermost)
}

/// The function of a frame, or its place where that has no name.
pub(crate) fn function(frame: &Frame) -> Cow<'_, str> {
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

/// The name, without what is beyond `most` characters of it: those of templates have no end.
pub(crate) fn shortened(name: &str, most: usize) -> Cow<'_, str> {
    match name.char_indices().nth(most) {
        None => name.into(),
        Some((end, _)) => format!("{}…", &name[..end]).into(),
    }
}

/// Whether a function passes an allocation on, and says nothing of who wanted it.
pub(crate) fn is_plumbing(name: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::made::{frame, inlined, stack};

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

    /// The first own function, inlined ones first; without one the innermost frame's; nobody without a frame.
    #[test]
    fn owners() {
        let new = || frame("libstdc++.so.6.0.30", "operator new(unsigned long)");
        let push = || frame("app", "std::vector<int>::push_back(int&&)");
        let insert = || frame("app", "Cache::insert(int)");
        for (frames, expected) in [
            (
                vec![new(), push(), insert(), frame("app", "main")],
                Some(("Cache::insert(int)", 2)),
            ),
            (
                vec![new(), inlined("app", "main", &["std::move<int>(int&)", "fill()"])],
                Some(("fill()", 1)),
            ),
            (
                vec![frame("libc.so.6", "strdup"), insert()],
                Some(("Cache::insert(int)", 1)),
            ),
            (
                vec![frame("app", "strdup"), insert()],
                Some(("Cache::insert(int)", 1)),
            ),
            (vec![frame("libc.so.6", "strdup")], Some(("strdup", 0))),
            (vec![], None),
        ] {
            let stack = stack(frames);
            let found = owner(&stack);
            let at = |found: &Owner<'_>| {
                stack
                    .frames
                    .iter()
                    .position(|frame| std::ptr::eq(frame, found.frame))
            };
            let found = found
                .as_ref()
                .map(|found| (&*found.function, at(found).expect("of this stack")));
            assert_eq!(found, expected);
        }
    }

    /// Names of templates have no end.
    #[test]
    fn long_names() {
        assert_eq!(shortened("Cache", 5), "Cache");
        assert_eq!(shortened("Caché2", 5), "Caché…");
    }
}
