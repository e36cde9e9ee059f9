//! The allocator functions that a module defines, without those that only forward calls.
//!
//! An allocator is a module that defines functions of one family that allocate and functions that free. Names
//! that are unique to an allocator count when they are local symbols too: linkers make hidden symbols local.
//! C's names count as local symbols in a static program, which has no other allocator: `malloc` of glibc's
//! `libc.a` is hidden. In other modules they count if the linker made them local, and there is `free` beside
//! `malloc`; functions that are local to one source file do not. A function that only forwards its call to
//! another probed one is left out: it would cost a probe and add no information.

use std::collections::{BTreeSet, HashMap, HashSet};

use unwind_tables::addr::Svma;
use unwind_tables::elf::ElfView;

use super::catalog::Catalog;
use super::flow::{AllocatorSet, Code};
use super::functions::{AllocFunction, Family, Role};
use super::linkage::Linkage;
use super::problem::Reason;
use super::symbols::{self, FunctionSymbol};
use memleak_process::Module;

/// Maximum number of prefixes that are accepted in one module.
const MAX_PREFIXES: usize = 4;

#[derive(Debug, Clone)]
pub(super) struct Definition {
    pub(super) function: AllocFunction,
    /// Symbol whose `name` is the function's number in the catalog.
    pub(super) symbol: FunctionSymbol,
}

/// Finds the functions of the catalog that a module defines, ordered by number, and the problems with the
/// rest.
pub(super) fn definitions(
    module: &Module,
    catalog: &mut Catalog,
) -> Result<(Vec<Definition>, Vec<Reason>), Reason> {
    let mut problems = Vec::new();
    let mut prefixes: BTreeSet<String> = catalog.selection.prefixes.iter().cloned().collect();
    let number = |name: &[u8]| {
        if let Some(prefix) = jemalloc_prefix(name).filter(|_| prefixes.len() < MAX_PREFIXES) {
            prefixes.insert(prefix.to_owned());
        }
        catalog.number(name)
    };
    let known = symbols::scan(module.bytes(), number)?;
    let locals = LocalFunctions::of(module, &known, catalog)?;
    let mut found = Vec::new();
    for &symbol in &known {
        let Some(function) = catalog.get(symbol.name) else {
            continue;
        };
        let is_meant = !symbol.local || function.family.may_be_local();
        if is_meant || locals.are_of_program(symbol) || locals.are_of_module(function, symbol) {
            found.push(Definition {
                function: function.clone(),
                symbol,
            });
        } else if locals.may_allocate(function, symbol) {
            problems.push(Reason::LocalFunction(function.name.clone(), function.shape));
        }
    }
    found.retain({
        let families = families(&found, module, &mut problems);
        move |definition| families.contains(&definition.function.family)
    });
    for prefix in prefixes {
        match prefixed(module, catalog, &prefix) {
            Ok(definitions) => found.extend(definitions),
            Err(reason) => problems.push(reason),
        }
    }
    found.sort_by_key(|definition| (definition.symbol.name, definition.symbol.svma));
    found.dedup_by_key(|definition| (definition.symbol.name, definition.symbol.svma));
    Ok((found, problems))
}

/// Functions that only jemalloc has. Of two names with the same ending, the longer one comes first. Linkers
/// leave out functions that a program does not call: Rust's `tikv-jemallocator` frees only by `sdallocx`.
const OF_JEMALLOC: [&str; 5] = ["sdallocx", "dallocx", "mallocx", "rallocx", "sallocx"];

/// Returns the prefix in the name of a function of jemalloc; `None` if there is none.
fn jemalloc_prefix(name: &[u8]) -> Option<&str> {
    // Most names end otherwise.
    let name = name.strip_suffix(b"allocx").and(std::str::from_utf8(name).ok())?;
    let prefix = OF_JEMALLOC
        .iter()
        .find_map(|function| name.strip_suffix(function))?;
    (!prefix.is_empty()).then_some(prefix)
}

/// Addresses of symbols of one name, only as precise as is needed to find another than a given one.
#[derive(Clone, Copy, Default)]
enum Places {
    #[default]
    None,
    One(Svma),
    Several,
}

impl Places {
    fn add(&mut self, svma: Svma) {
        *self = match *self {
            Self::None => Self::One(svma),
            Self::One(known) if known == svma => Self::One(known),
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    fn has_other_than(self, svma: Svma) -> bool {
        match self {
            Self::None => false,
            Self::One(known) => known != svma,
            Self::Several => true,
        }
    }
}

/// Symbols of one name.
#[derive(Clone, Copy, Default)]
struct Namesakes {
    all: Places,
    /// Those that are not local.
    exported: Places,
}

/// Local symbols with names of C's functions.
struct LocalFunctions {
    /// Symbols by the function's number. A file can have any number of symbols with one of the names.
    of_name: HashMap<usize, Namesakes>,
    /// Symbols that are not local, by the function's number and address.
    exported: HashSet<(usize, Svma)>,
    /// Addresses that glibc names `__libc_malloc` and so on, by the function's number: only in a static
    /// program that has several functions of one of its names.
    of_glibc: HashSet<(usize, Svma)>,
    is_static_program: bool,
    is_loader: bool,
    /// Set if the linker has hidden `malloc`, and code of the module that calls it calls the module's own
    /// `free`, too.
    hides_allocator: bool,
}

impl LocalFunctions {
    fn of(module: &Module, known: &[FunctionSymbol], catalog: &Catalog) -> Result<Self, Reason> {
        let mut locals = Self {
            is_static_program: module.is_static_program(),
            is_loader: is_loader(module),
            ..Self::among(known)
        };
        locals.hides_allocator = locals.hides_allocator(known, catalog);
        let mut namesakes = locals.of_name.values();
        if locals.is_static_program && namesakes.any(|of_name| matches!(of_name.all, Places::Several)) {
            let number = |name: &[u8]| catalog.number(name.strip_prefix(b"__libc_")?);
            let aliases = symbols::scan(module.bytes(), number)?;
            let places = aliases.iter().map(|alias| (alias.name, alias.svma));
            locals.of_glibc = places.collect();
        }
        Ok(locals)
    }

    /// Collects the local symbols among those of a file that is neither a static program nor the loader.
    fn among(known: &[FunctionSymbol]) -> Self {
        let mut of_name: HashMap<usize, Namesakes> = HashMap::new();
        for symbol in known {
            let namesakes = of_name.entry(symbol.name).or_default();
            namesakes.all.add(symbol.svma);
            if !symbol.local {
                namesakes.exported.add(symbol.svma);
            }
        }
        let exported = known.iter().filter(|symbol| !symbol.local);
        Self {
            of_name,
            exported: exported.map(|symbol| (symbol.name, symbol.svma)).collect(),
            of_glibc: HashSet::new(),
            is_static_program: false,
            is_loader: false,
            hides_allocator: false,
        }
    }

    /// True if the module has a hidden `malloc`, and its own `free`. Without `free`, no end of the hidden
    /// `malloc`'s blocks would be seen. A `malloc` that is local to one source file does not show which
    /// function other files call, and its own file often inlines it.
    fn hides_allocator(&self, known: &[FunctionSymbol], catalog: &Catalog) -> bool {
        let the_only = |name: &str| {
            let number = catalog.number(name.as_bytes())?;
            let symbol = known.iter().find(|symbol| symbol.name == number)?;
            let is_only = !self.namesakes(*symbol).all.has_other_than(symbol.svma);
            is_only.then_some(symbol)
        };
        the_only("malloc").is_some_and(|malloc| malloc.hidden)
            && the_only("free").is_some_and(|free| free.hidden || !free.local)
    }

    fn namesakes(&self, symbol: FunctionSymbol) -> Namesakes {
        self.of_name.get(&symbol.name).copied().unwrap_or_default()
    }

    /// True if, in a static program, which is all code of its process, this name can only mean this function:
    /// `malloc` of glibc's `libc.a` is hidden, and most linkers make hidden symbols local.
    fn are_of_program(&self, symbol: FunctionSymbol) -> bool {
        let is_named_so_by_glibc = self.of_glibc.contains(&(symbol.name, symbol.svma));
        let Namesakes { all, exported } = self.namesakes(symbol);
        self.is_static_program
            && (!all.has_other_than(symbol.svma)
                || is_named_so_by_glibc && !exported.has_other_than(symbol.svma))
    }

    /// True if all code of the module that calls a function of C by this name calls this one, which belongs
    /// to its hidden allocator.
    fn are_of_module(&self, function: &AllocFunction, symbol: FunctionSymbol) -> bool {
        function.family == Family::Libc
            && symbol.hidden
            && self.hides_allocator
            && !self.is_loader
            && !self.namesakes(symbol).all.has_other_than(symbol.svma)
    }

    /// True if code of the module may allocate by this function, although it has the name of one of the C
    /// library's.
    fn may_allocate(&self, function: &AllocFunction, symbol: FunctionSymbol) -> bool {
        function.family == Family::Libc
            && function.role == Role::Allocate
            && !self.is_loader
            && !self.exported.contains(&(symbol.name, symbol.svma))
    }
}

/// The families of which the module has both an allocating and a freeing function, or a given one.
fn families(found: &[Definition], module: &Module, problems: &mut Vec<Reason>) -> HashSet<Family> {
    let has = |family: Family, frees: bool| {
        let of = |definition: &&Definition| {
            definition.function.family == family && (definition.function.role == Role::Free) == frees
        };
        found.iter().any(|definition| of(&definition))
    };
    let defines = |name: &str| found.iter().any(|definition| definition.function.name == name);
    let mut families: HashSet<Family> = found
        .iter()
        .map(|definition| definition.function.family)
        .filter(|&family| family == Family::Given || (has(family, true) && has(family, false)))
        .collect();
    let given = |name| {
        found
            .iter()
            .any(|definition| definition.function.family == Family::Given && definition.function.name == name)
    };
    match (defines("malloc"), defines("free")) {
        (true, true) if is_loader(module) => {
            problems.push(Reason::Loader);
            families.remove(&Family::Libc);
        }
        (true, true) => {
            families.insert(Family::Libc);
        }
        // The whole program is this module, so no other could free its blocks.
        (true, false) if module.is_static_program() => {
            families.insert(Family::Libc);
            problems.push(Reason::NeverFrees);
        }
        (malloc, free) => {
            families.remove(&Family::Libc);
            if malloc && !given("malloc") {
                problems.push(Reason::HalfAllocator("malloc", "free"));
            }
            if free && !given("free") {
                problems.push(Reason::HalfAllocator("free", "malloc"));
            }
        }
    }
    if families.contains(&Family::Collector) {
        problems.push(Reason::Collector);
    }
    families
}

/// True for glibc's loader. (musl's loader *is* its libc, and has another name.)
fn is_loader(module: &Module) -> bool {
    module
        .path
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
}

/// Finds the functions of C and of jemalloc under a prefix; empty unless some of them allocate and some free.
fn prefixed(module: &Module, catalog: &mut Catalog, prefix: &str) -> Result<Vec<Definition>, Reason> {
    let base = |name: &[u8]| catalog.base_of_prefixed(name.strip_prefix(prefix.as_bytes())?);
    let symbols = symbols::scan(module.bytes(), base)?;
    let functions = symbols.iter().filter_map(|symbol| catalog.get(symbol.name));
    let (frees, allocates): (Vec<_>, Vec<_>) = functions.partition(|function| function.role == Role::Free);
    if frees.is_empty() || allocates.is_empty() {
        return Ok(Vec::new());
    }
    symbols
        .into_iter()
        .map(|symbol| {
            let number = catalog.prefixed(prefix, symbol.name);
            let number = number.ok_or_else(|| Reason::TooManyFunctions(prefix.to_owned()))?;
            let function = catalog.get(number).cloned();
            let symbol = FunctionSymbol {
                name: number,
                ..symbol
            };
            Ok(function.map(|function| Definition { function, symbol }))
        })
        .filter_map(Result::transpose)
        .collect()
}

/// The allocating or freeing functions of a module, and of other modules by name.
pub(super) struct KnownFunctions<'a> {
    pub(super) addresses: HashSet<Svma>,
    pub(super) catalog: &'a Catalog,
    pub(super) frees: bool,
    /// Set if other objects' functions are probed, too.
    pub(super) elsewhere: bool,
}

impl<'a> KnownFunctions<'a> {
    /// Selects the functions that free or those that allocate, except for the one at `except`.
    pub(super) fn of(definitions: &[Definition], frees: bool, except: Svma, catalog: &'a Catalog) -> Self {
        let kind = definitions
            .iter()
            .filter(|definition| (definition.function.role == Role::Free) == frees);
        let addresses = kind.map(|definition| definition.symbol.svma);
        Self {
            addresses: addresses.filter(|&svma| svma != except).collect(),
            catalog,
            frees,
            elsewhere: catalog.selection.objects.is_empty(),
        }
    }
}

impl AllocatorSet for KnownFunctions<'_> {
    fn is_function(&self, svma: Svma) -> bool {
        self.addresses.contains(&svma)
    }

    fn is_import(&self, name: &[u8]) -> bool {
        let function = self
            .catalog
            .number(name)
            .and_then(|number| self.catalog.get(number));
        self.elsewhere && function.is_some_and(|function| (function.role == Role::Free) == self.frees)
    }
}

/// Removes the functions that only forward a call to another probed function.
pub(super) fn without_forwarders(
    module: &Module,
    elf: &ElfView<'_>,
    linkage: &Linkage<'_>,
    definitions: Vec<Definition>,
    catalog: &Catalog,
) -> Vec<Definition> {
    let code = Code::new(module.bytes(), elf, linkage);
    let forwards = |definition: &Definition| {
        let AllocFunction { family, role, .. } = definition.function;
        let frees = role == Role::Free;
        let asked = family.often_forwards() || (frees && family != Family::Given);
        let entry = definition.symbol.svma;
        asked && code.forwards(entry, &KnownFunctions::of(&definitions, frees, entry, catalog))
    };
    let kept: Vec<bool> = definitions
        .iter()
        .map(|definition| !forwards(definition))
        .collect();
    let allocates = |family: Family| {
        let mut all = definitions.iter().zip(&kept);
        all.any(|(definition, &kept)| {
            kept && definition.function.family == family && definition.function.role.allocates()
        })
    };
    // If no function of a family allocates by itself, none frees by itself: such as a `delete` that checks
    // for null first.
    let is_kept = |&(definition, &kept): &(&Definition, &bool)| {
        let family = definition.function.family;
        kept && (!family.often_forwards() || allocates(family))
    };
    let left = definitions.iter().zip(&kept).filter(is_kept);
    left.map(|(definition, _)| definition.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::symbols::SymbolKind;
    use super::*;

    fn symbol(name: usize, svma: u64, local: bool) -> FunctionSymbol {
        FunctionSymbol {
            name,
            svma: Svma::new(svma),
            size: 16,
            kind: SymbolKind::Function,
            local,
            hidden: false,
        }
    }

    fn in_static_program(known: &[FunctionSymbol]) -> LocalFunctions {
        LocalFunctions {
            is_static_program: true,
            ..LocalFunctions::among(known)
        }
    }

    /// A name means a local function if that is the only one, or if glibc names it so and no other is
    /// exported.
    #[test]
    fn of_several_functions_glibc_says_which_it_is() {
        let [local, again, other] = [(1, true), (1, true), (2, true)].map(|(at, local)| symbol(0, at, local));
        let exported = symbol(0, 2, false);
        for (known, of_glibc, expected) in [
            (&[local][..], &[][..], true),
            (&[local, again], &[], true),
            (&[local, symbol(1, 2, true)], &[], true),
            (&[local, other], &[], false),
            (&[local, other], &[(0, Svma::new(2))], false),
            (&[local, other], &[(0, Svma::new(1))], true),
            (&[local, exported], &[(0, Svma::new(1))], false),
            (&[local, symbol(0, 1, false), other], &[(0, Svma::new(1))], true),
        ] {
            let locals = LocalFunctions {
                of_glibc: of_glibc.iter().copied().collect(),
                ..in_static_program(known)
            };
            assert_eq!(locals.are_of_program(local), expected, "{known:?} {of_glibc:?}");
        }
    }

    /// A file can have as many symbols of a name as it likes: to look at each pair of so many would take
    /// hours.
    #[test]
    fn many_symbols_of_a_name_take_no_time() {
        let known: Vec<_> = (0..1_000_000).map(|svma| symbol(0, svma, true)).collect();
        let locals = LocalFunctions {
            of_glibc: known.iter().map(|symbol| (0, symbol.svma)).collect(),
            ..in_static_program(&known)
        };
        assert!(known.iter().all(|&symbol| locals.are_of_program(symbol)));
    }
}
