//! The functions to look for, and in which objects: the table, the user's additions, and functions found
//! under a prefix. A function's number here is its number on the kernel side.

use std::collections::HashMap;
use std::path::Path;

use super::functions::{AllocFunction, Family, Returns};
use super::table::FUNCTIONS;
use leak_report::model::Name;

/// The user's selection of allocators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Objects to which probing is limited, by file name or path; empty for all objects.
    pub objects: Vec<String>,
    /// Prefixes of the names of allocation functions.
    pub prefixes: Vec<String>,
    /// Functions in addition to the table's.
    pub functions: Vec<AllocFunction>,
}

impl Selection {
    /// True if the object may be probed.
    pub fn admits(&self, path: &Path) -> bool {
        self.objects.is_empty() || self.objects.iter().any(|wanted| is_called(path, wanted))
    }
}

/// Matches a path as a whole or by its file name, with or without version; `c` and `libc` match `libc.so.6`
/// too.
fn is_called(path: &Path, wanted: &str) -> bool {
    if wanted.contains('/') {
        return path == Path::new(wanted);
    }
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let is_version = |rest: &str| rest.starts_with(".so") || (rest.starts_with('-') && rest.contains(".so"));
    let named = |start: &str| name.strip_prefix(start).is_some_and(is_version);
    name == wanted || named(wanted) || named(&format!("lib{wanted}"))
}

/// Functions by number, those of [`FUNCTIONS`] first. Functions found under a prefix are added, up to
/// [`Catalog::CAPACITY`].
#[derive(Debug, Clone)]
pub struct Catalog {
    functions: Vec<AllocFunction>,
    by_name: HashMap<Vec<u8>, usize>,
    pub selection: Selection,
}

impl Default for Catalog {
    fn default() -> Self {
        Self::new(Selection::default())
    }
}

impl Catalog {
    /// Maximum number of functions on the kernel side.
    pub const CAPACITY: usize = 256;
    /// Maximum number of functions that the user can describe: the table's have numbers as well.
    pub const MAX_GIVEN: usize = Self::CAPACITY - FUNCTIONS.len();

    /// Makes a catalog of the table and the user's functions, which take precedence over the table's of the
    /// same name.
    pub fn new(selection: Selection) -> Self {
        let mut catalog = Self {
            functions: FUNCTIONS.to_vec(),
            by_name: HashMap::new(),
            selection: Selection::default(),
        };
        for (number, function) in FUNCTIONS.iter().enumerate() {
            catalog.by_name.insert(function.name.as_bytes().to_vec(), number);
        }
        for function in &selection.functions {
            catalog.add(function.clone());
        }
        catalog.selection = selection;
        catalog
    }

    pub fn get(&self, number: usize) -> Option<&AllocFunction> {
        self.functions.get(number)
    }

    /// True if calls of some function can end on another thread than they began on.
    pub fn has_calls_that_move(&self) -> bool {
        let mut functions = self.functions();
        functions.any(|function| function.returns == Returns::Anywhere)
    }

    /// All functions, in the order of their numbers.
    pub fn functions(&self) -> impl Iterator<Item = &AllocFunction> {
        self.functions.iter()
    }

    /// Number of a function, by its symbol. Recent Rust compilers mangle the names of the `__rust_…`
    /// functions.
    pub fn number(&self, symbol: &[u8]) -> Option<usize> {
        let rust = symbol
            .starts_with(b"_RNvC")
            .then(|| without_rust_path(symbol))
            .flatten();
        self.by_name.get(rust.unwrap_or(symbol)).copied()
    }

    /// Number of the function `base` under a prefix, added if new; `None` if the catalog is full.
    pub(super) fn prefixed(&mut self, prefix: &str, base: usize) -> Option<usize> {
        let base = self.get(base)?;
        let function = AllocFunction {
            name: Name::Owned(format!("{prefix}{}", base.name)),
            family: Family::Jemalloc,
            ..base.clone()
        };
        let known = self.by_name.get(function.name.as_bytes()).copied();
        known.or_else(|| self.add(function))
    }

    fn add(&mut self, function: AllocFunction) -> Option<usize> {
        let number = self.functions.len();
        if number >= Self::CAPACITY {
            return None;
        }
        self.by_name.insert(function.name.as_bytes().to_vec(), number);
        self.functions.push(function);
        Some(number)
    }

    /// Number of the unprefixed function, if it is one that can have a prefix: those of C and of jemalloc.
    pub(super) fn base_of_prefixed(&self, name: &[u8]) -> Option<usize> {
        let number = self.number(name)?;
        let function = FUNCTIONS.get(number)?;
        matches!(function.family, Family::Libc | Family::Jemalloc).then_some(number)
    }
}

/// Demangles `_RNvCs…_7___rustc12___rust_alloc`, which is `__rust_alloc` in the crate `__rustc` (RFC 2603).
fn without_rust_path(symbol: &[u8]) -> Option<&[u8]> {
    const CRATE: &[u8] = b"7___rustc";
    let at = symbol.windows(CRATE.len()).position(|bytes| bytes == CRATE)?;
    let rest = symbol.get(at + CRATE.len()..)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // The mangling separates a name that starts with an underscore from its length by one more.
    rest.get(digits..)?.strip_prefix(b"_")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects are named as by the dynamic loader, by path, or as for a linker's `-l`.
    #[test]
    fn object_names() {
        let libc = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
        for (wanted, expected) in [
            ("libc.so.6", true),
            ("libc.so", false),
            ("libc", true),
            ("c", true),
            ("/lib/x86_64-linux-gnu/libc.so.6", true),
            ("/lib/libc.so.6", false),
            ("libm.so.6", false),
            ("lib", false),
            ("", false),
        ] {
            assert_eq!(is_called(libc, wanted), expected, "{wanted}");
        }
        assert!(is_called(Path::new("/usr/bin/redis-server"), "redis-server"));
        assert!(is_called(Path::new("/lib/libc-2.31.so"), "c"));
    }

    /// A given function replaces a known one of the same name, and prefixed functions get their own numbers.
    #[test]
    fn numbers() {
        let given = AllocFunction {
            family: Family::Given,
            ..FUNCTIONS[0].clone()
        };
        let mut catalog = Catalog::new(Selection {
            functions: vec![given],
            ..Selection::default()
        });
        assert_eq!(catalog.number(b"malloc"), Some(FUNCTIONS.len()));
        let base = catalog.number(b"mallocx").expect("a row");
        let first = catalog.prefixed("je_", base);
        assert_eq!(first, Some(FUNCTIONS.len() + 1));
        assert_eq!(catalog.prefixed("je_", base), first);
        assert_eq!(
            catalog.get(FUNCTIONS.len() + 1).map(|row| &*row.name),
            Some("je_mallocx")
        );
        let many = (0..Catalog::CAPACITY).map(|number| catalog.prefixed(&number.to_string(), base));
        assert_eq!(many.last(), Some(None), "there is an end");
    }

    /// Rust's functions are found by their old and their new names.
    #[test]
    fn rust_names() {
        let catalog = Catalog::default();
        let plain = catalog.number(b"__rust_dealloc");
        assert!(plain.is_some());
        let mangled = b"_RNvCsdKVW6UZ1q9b_7___rustc14___rust_dealloc";
        assert_eq!(catalog.number(mangled), plain);
        assert_eq!(catalog.number(b"_RNvCs_3foo6malloc"), None);
    }
}
