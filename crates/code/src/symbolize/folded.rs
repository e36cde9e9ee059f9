//! Functions that share their code, because a linker (`--icf`) or a compiler found it to be equal: a frame in
//! it can be of any of them. Pure.
//!
//! Several names of one function are far more frequent, and symbol tables do not tell the two cases apart.
//! C's names count as names of one function: libraries give each function two or three (`write`, `__write`,
//! `__GI_write`). A mangled name identifies its function. So functions count as folded if their mangled names
//! stand for different things. Exceptions are the constructors and destructors that a compiler makes of one,
//! and the forms of `operator new` and `operator delete`, which allocators define as one.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::demangle::demangle;
use super::symbols::RawSymbol;
use leak_report::model::MAX_FOLDED;

/// Beginnings of mangled names of functions that programs do not call by name: `operator new`,
/// `operator delete`, and the initialization of thread-local variables.
const NOT_FOLDED: [&[u8]; 6] = [b"_Znw", b"_Zna", b"_Zdl", b"_Zda", b"_ZTH", b"_ZTW"];

/// Other mangled names of places in a file, by place.
#[derive(Debug, Default)]
pub(super) struct Folded {
    /// Ascending; each with the place of its name in `names`.
    others: Vec<(Place, Range<usize>)>,
    names: Vec<u8>,
}

/// First address and size of a function.
type Place = (u64, u64);

impl Folded {
    /// Finds candidates among `symbols`, which are sorted by place, the preferred one of each place first.
    pub(super) fn of(symbols: &[RawSymbol<'_>]) -> Self {
        let mut folded = Self::default();
        for same in symbols.chunk_by(|one, next| place(one) == place(next)) {
            let Some((_, others)) = same.split_first().filter(|(shown, _)| is_candidate(shown.name)) else {
                continue;
            };
            let others = others.iter().filter(|other| is_candidate(other.name));
            for other in others.take(2 * MAX_FOLDED) {
                let start = folded.names.len();
                folded.names.extend_from_slice(other.name);
                folded.others.push((place(other), start..folded.names.len()));
            }
        }
        folded
    }

    /// Names of the functions at `range` other than `shown`, demangled.
    pub(super) fn with(&self, shown: &[u8], range: Range<u64>) -> Vec<Arc<str>> {
        let place = (range.start, range.end.saturating_sub(range.start));
        let first = self.others.partition_point(|(other, _)| *other < place);
        let here = self.others.get(first..).unwrap_or_default();
        let here: Vec<_> = here.iter().take_while(|(other, _)| *other == place).collect();
        if here.is_empty() {
            return Vec::new();
        }
        let shown = demangle(without_suffix(shown));
        let names = here
            .into_iter()
            .filter_map(|(_, name)| self.names.get(name.clone()));
        let names: BTreeSet<String> = names.map(|name| demangle(without_suffix(name))).collect();
        let others = names.into_iter().filter(|name| *name != shown);
        others.take(MAX_FOLDED).map(Arc::from).collect()
    }

    /// Memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.names.len() + size_of_val(&self.others[..])
    }
}

fn place(symbol: &RawSymbol<'_>) -> Place {
    (symbol.start, symbol.size)
}

/// True for a name that identifies a function.
fn is_candidate(name: &[u8]) -> bool {
    let is_mangled = name.starts_with(b"_Z") || name.starts_with(b"_R");
    is_mangled && !NOT_FOLDED.iter().any(|beginning| name.starts_with(beginning))
}

/// Removes the suffix that compilers add to the name of a copy: `.localalias`, `.llvm.123`.
fn without_suffix(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|&byte| byte == b'.');
    &name[..end.unwrap_or(name.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[&str], expected: &[&str]) {
        let symbols: Vec<_> = names
            .iter()
            .map(|name| RawSymbol {
                start: 0x1000,
                size: 16,
                section_end: 0x2000,
                name: name.as_bytes(),
                global: true,
                function: true,
            })
            .collect();
        let folded = Folded::of(&symbols);
        let found = folded.with(symbols[0].name, 0x1000..0x1010);
        assert_eq!(
            found.iter().map(|name| &**name).collect::<Vec<_>>(),
            expected,
            "{names:?}"
        );
        assert_eq!(folded.with(symbols[0].name, 0x1000..0x1011), []);
    }

    /// Mangled names of different things are functions that were folded; names of one thing, and C's, are
    /// not.
    #[test]
    fn names_of_one_place() {
        check(&["_Z1av", "_Z1bv", "_Z1cv"], &["b()", "c()"]);
        check(&["_Z1av", "_Z1av.localalias", "_Z1bv.llvm.17"], &["b()"]);
        check(&["_ZN1AC1Ev", "_ZN1AC2Ev"], &[]);
        check(&["_ZN1AD2Ev", "_ZN1AD1Ev", "_ZN1BD2Ev"], &["B::~B()"]);
        check(&["malloc", "__libc_malloc"], &[]);
        check(&["_Z1av", "plain"], &[]);
        check(&["plain", "_Z1av", "_Z1bv"], &[]);
        check(&["_Znwm", "_Znam"], &[]);
        check(
            &[
                "_ZN4core3ptr4drop17h0123456789abcdefE",
                "_ZN4core3ptr4drop17hfedcba9876543210E",
            ],
            &[],
        );
        check(
            &["_ZN1a4drop17h0123456789abcdefE", "_ZN1b4drop17hfedcba9876543210E"],
            &["b::drop"],
        );
    }

    /// The number of names is limited if many functions share their code.
    #[test]
    fn many_functions() {
        let names: Vec<String> = (100..400).map(|number| format!("_Z4f{number}v")).collect();
        let symbols: Vec<_> = names.iter().map(String::as_str).collect();
        let mut all: Vec<String> = (101..)
            .map(|number| format!("f{number}()"))
            .take(MAX_FOLDED)
            .collect();
        all.sort();
        let expected: Vec<&str> = all.iter().map(String::as_str).collect();
        check(&symbols, &expected);
    }
}
