//! Lookup of the function symbol that contains an address. Pure: symbols in, names out.
//!
//! A missing name is better than a wrong one: a symbol with a size ends there, and one without ends at the
//! next symbol, where unwind information begins another function, or with its section.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use super::folded::Folded;

/// A code symbol as in its table.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawSymbol<'a> {
    /// First byte, as an SVMA.
    pub(super) start: u64,
    /// Size in bytes; 0 if not known.
    pub(super) size: u64,
    /// End of the section that contains it.
    pub(super) section_end: u64,
    /// Mangled name.
    pub(super) name: &'a [u8],
    /// Set if other objects can see it.
    pub(super) global: bool,
    /// Set for a function, not just a label.
    pub(super) function: bool,
}

/// A symbol that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundSymbol<'a> {
    /// Mangled name.
    pub(super) name: &'a [u8],
    /// First byte, as an SVMA.
    pub(super) start: u64,
    /// Byte behind the last one.
    end: u64,
}

/// All code symbols of an object, one name per range of addresses.
#[derive(Debug, Default)]
pub(super) struct SymbolTable {
    sized: Ranges,
    unsized_: Ranges,
    names: Vec<u8>,
    folded: Folded,
}

/// Address ranges, sorted by start; of equal starts, the longer comes first.
#[derive(Debug, Default)]
struct Ranges(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    range: Range<u64>,
    /// The highest end among this entry and all before it: a lookup that goes back stops where it is too low.
    reach: u64,
    name: Range<usize>,
}

/// Maximum number of entries that a lookup goes back over. Symbols nest two or three deep; only a malformed
/// table has more.
const MAX_NESTING: usize = 256;

impl SymbolTable {
    /// Builds the table from `symbols`, in any order. `function_after` is the first start of a function after
    /// an address, as far as it is known without symbols.
    pub(super) fn new<'a>(
        symbols: impl IntoIterator<Item = RawSymbol<'a>>,
        function_after: impl Fn(u64) -> Option<u64>,
    ) -> Self {
        let symbols = symbols.into_iter().map(without_version).filter(is_named);
        let (mut sized, mut unsized_): (Vec<_>, Vec<_>) = symbols.partition(|symbol| symbol.size > 0);
        sized.sort_by_key(|symbol| (symbol.start, Reverse(symbol.size), preference(symbol)));
        let folded = Folded::of(&sized);
        sized.dedup_by_key(|symbol| (symbol.start, symbol.size));
        unsized_.sort_by_key(|symbol| (symbol.start, preference(symbol)));
        unsized_.dedup_by_key(|symbol| symbol.start);

        let mut starts: Vec<u64> = sized.iter().chain(&unsized_).map(|symbol| symbol.start).collect();
        starts.sort_unstable();
        let next_start = |start| {
            starts
                .get(starts.partition_point(|&other| other <= start))
                .copied()
        };
        let unsized_end = |symbol: &RawSymbol<'_>| {
            [next_start(symbol.start), function_after(symbol.start)]
                .into_iter()
                .flatten()
                .fold(symbol.section_end, u64::min)
        };

        let mut table = Self {
            folded,
            ..Self::default()
        };
        table.sized = Ranges::new(
            &sized,
            |symbol| symbol.start.saturating_add(symbol.size),
            &mut table.names,
        );
        table.unsized_ = Ranges::new(&unsized_, unsized_end, &mut table.names);
        table
    }

    /// The symbol that contains `address`: the innermost one with a size, else one without.
    pub(super) fn find(&self, address: u64) -> Option<FoundSymbol<'_>> {
        let entry = self.sized.find(address).or_else(|| self.unsized_.find(address))?;
        Some(FoundSymbol {
            name: self.names.get(entry.name.clone())?,
            start: entry.range.start,
            end: entry.range.end,
        })
    }

    /// Names of other functions that have the code of `symbol`, demangled.
    pub(super) fn folded_with(&self, symbol: FoundSymbol<'_>) -> Vec<Arc<str>> {
        self.folded.with(symbol.name, symbol.start..symbol.end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sized.0.is_empty() && self.unsized_.0.is_empty()
    }

    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        self.names.len()
            + self.folded.memory()
            + size_of::<Entry>() * (self.sized.0.len() + self.unsized_.0.len())
    }
}

impl Ranges {
    fn new<'a>(symbols: &[RawSymbol<'a>], end: impl Fn(&RawSymbol<'a>) -> u64, names: &mut Vec<u8>) -> Self {
        let mut reach = 0;
        let mut entry = |symbol: &RawSymbol<'a>| {
            let range = symbol.start..end(symbol);
            reach = range.end.max(reach);
            let name_start = names.len();
            names.extend_from_slice(symbol.name);
            let name = name_start..names.len();
            Entry { range, reach, name }
        };
        Self(symbols.iter().map(&mut entry).collect())
    }

    fn find(&self, address: u64) -> Option<&Entry> {
        let after = self.0.partition_point(|entry| entry.range.start <= address);
        let before = self.0.get(..after)?.iter().rev().take(MAX_NESTING);
        before
            .take_while(|entry| entry.reach > address)
            .find(|entry| entry.range.contains(&address))
    }
}

/// Removes the version: static symbol tables have versioned names as `name@VERSION` and `name@@VERSION`.
fn without_version(symbol: RawSymbol<'_>) -> RawSymbol<'_> {
    let end = symbol
        .name
        .iter()
        .position(|&byte| byte == b'@')
        .unwrap_or(symbol.name.len());
    RawSymbol {
        name: &symbol.name[..end],
        ..symbol
    }
}

/// True unless the name is empty or an assembler-local label.
fn is_named(symbol: &RawSymbol<'_>) -> bool {
    !symbol.name.is_empty() && !symbol.name.starts_with(b".L")
}

/// Sort key for the names of one address range, the preferred one first: `malloc`, not `__libc_malloc`.
fn preference<'a>(symbol: &RawSymbol<'a>) -> (bool, bool, usize, usize, &'a [u8]) {
    let mangled = symbol.name.starts_with(b"_Z") || symbol.name.starts_with(b"_R");
    let underscores = match mangled {
        true => 0,
        false => symbol.name.iter().take_while(|&&byte| byte == b'_').count(),
    };
    (
        !symbol.function,
        !symbol.global,
        underscores,
        symbol.name.len(),
        symbol.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &str, start: u64, size: u64) -> RawSymbol<'_> {
        RawSymbol {
            start,
            size,
            section_end: 0x2000,
            name: name.as_bytes(),
            global: true,
            function: true,
        }
    }

    fn local(symbol: RawSymbol<'_>) -> RawSymbol<'_> {
        RawSymbol {
            global: false,
            ..symbol
        }
    }

    #[track_caller]
    fn check(symbols: &[RawSymbol<'_>], cases: &[(u64, Option<&str>)]) {
        check_beside(symbols, &[], cases);
    }

    /// Checks lookups with functions that are known by unwind information.
    #[track_caller]
    fn check_beside(symbols: &[RawSymbol<'_>], functions: &[u64], cases: &[(u64, Option<&str>)]) {
        let table = SymbolTable::new(symbols.iter().copied(), |address| {
            functions.iter().copied().filter(|&start| start > address).min()
        });
        for &(address, expected) in cases {
            let found = table
                .find(address)
                .map(|found| String::from_utf8_lossy(found.name).into_owned());
            assert_eq!(found.as_deref(), expected, "at {address:#x}");
        }
    }

    /// A sized symbol contains its bytes and no more.
    #[test]
    fn sizes_bound_symbols() {
        let symbols = [symbol("a", 0x1000, 0x10), symbol("b", 0x1020, 0x10)];
        let cases = [
            (0xfff, None),
            (0x1000, Some("a")),
            (0x100f, Some("a")),
            (0x1010, None),
            (0x102f, Some("b")),
            (0x1030, None),
        ];
        check(&symbols, &cases);
    }

    /// A symbol without size ends at the next symbol, or with its section, and yields to any sized one.
    #[test]
    fn symbols_without_size() {
        let symbols = [
            symbol("label", 0x1000, 0),
            symbol("sized", 0x1100, 0x100),
            symbol("inside", 0x1180, 0),
            symbol("last", 0x1f00, 0),
        ];
        let cases = [
            (0x10ff, Some("label")),
            (0x1190, Some("sized")),
            (0x1200, Some("inside")),
            (0x1fff, Some("last")),
            (0x2000, None),
        ];
        check(&symbols, &cases);
    }

    /// A function that only unwind information knows has no name, and not that of a symbol without size
    /// before it.
    #[test]
    fn symbols_without_size_end_where_functions_begin() {
        let symbols = [symbol("assembly", 0x1000, 0), symbol("sized", 0x1100, 0x100)];
        let cases = [
            (0x1002, Some("assembly")),
            (0x100f, Some("assembly")),
            (0x1010, None),
            (0x1090, None),
            (0x1150, Some("sized")),
        ];
        check_beside(&symbols, &[0x1000, 0x1040, 0x1010, 0x1140], &cases);
    }

    /// The innermost of nested symbols names an address; around it, the outer one does.
    #[test]
    fn nested_symbols() {
        let symbols = [
            symbol("outer", 0x1000, 0x100),
            symbol("inner", 0x1040, 0x10),
            symbol("same_start", 0x1000, 0x20),
        ];
        check(
            &symbols,
            &[
                (0x1010, Some("same_start")),
                (0x1045, Some("inner")),
                (0x1060, Some("outer")),
            ],
        );
    }

    /// Among several names for the same bytes, the documented one is shown.
    #[test]
    fn aliases() {
        let cases: [(&[RawSymbol<'_>], &str); 5] = [
            (&[symbol("__libc_malloc", 0, 8), symbol("malloc", 0, 8)], "malloc"),
            (&[symbol("tc_malloc", 0, 8), symbol("malloc", 0, 8)], "malloc"),
            (
                &[
                    symbol("__write", 0, 8),
                    symbol("write", 0, 8),
                    symbol("__GI_write", 0, 8),
                ],
                "write",
            ),
            (&[local(symbol("a", 0, 8)), symbol("exported", 0, 8)], "exported"),
            (
                &[symbol("free@@GLIBC_2.2.5", 0, 8), symbol("__libc_free", 0, 8)],
                "free",
            ),
        ];
        for (symbols, expected) in cases {
            check(symbols, &[(4, Some(expected))]);
        }
    }

    /// Sizes that exceed the address space, and many symbols at one address, are harmless.
    #[test]
    fn malformed_symbols() {
        check(
            &[symbol("huge", 0x1000, u64::MAX)],
            &[(0x1000, Some("huge")), (u64::MAX - 1, Some("huge"))],
        );
        let many: Vec<_> = (1..5000).map(|size| symbol("many", 0x1000, size)).collect();
        check(&many, &[(0x1000, Some("many")), (0x1000 + 4998, None)]);
    }
}
