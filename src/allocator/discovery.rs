//! Finds the allocators among a process's modules and chooses their probe sites.
//!
//! An allocator is a module that defines both `malloc` and `free`: glibc's `libc.so.6`, tcmalloc,
//! jemalloc, mimalloc, or the program itself when it is linked statically. *All* of them are
//! probed, the interposed libc too: who calls libc's `malloc` by another way than the symbol is
//! seen, and a call that passes through two of them counts once, since only the outermost call on
//! a thread is recorded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use unwind_tables::addr::{FileOffset, Svma, contains};
use unwind_tables::elf::{ElfView, Segment};
use unwind_tables::error::TableError;

use super::functions::{AllocFunction, FUNCTIONS, Presence};
use super::probing::{SiteCost, Unprobeable};
use super::sites::{self, FunctionCode, Why};
use super::symbols::{self, FunctionSymbol, SymbolError, SymbolKind};
use crate::target::{Module, ModuleId};

/// An instruction to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSite {
    /// The file.
    pub module: ModuleId,
    /// The function, as an index into [`FUNCTIONS`].
    pub function: usize,
    /// Its name.
    pub symbol: String,
    /// Other traced names of the same code, such as `memalign` for `aligned_alloc`.
    pub aliases: Vec<&'static str>,
    /// Where the function starts.
    pub entry: Svma,
    /// Where the probe sits.
    pub svma: Svma,
    /// The same, as a position in the file, which is how a probe is attached.
    pub offset: FileOffset,
    /// What a hit costs.
    pub cost: SiteCost,
    /// Why there.
    pub why: Why,
}

impl ProbeSite {
    /// The function's row in the table.
    ///
    /// `None` only for a site that was not made by [`discover`].
    pub fn allocator_function(&self) -> Option<&'static AllocFunction> {
        FUNCTIONS.get(self.function)
    }
}

/// Something that was found and is not probed, or not found and missed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}: {reason}", .module.as_ref().map_or_else(|| "any module".into(), |path| path.display().to_string()))]
pub struct Problem {
    /// The file, as the target sees it; `None` when it is about all of them.
    pub module: Option<PathBuf>,
    /// What is wrong.
    pub reason: Reason,
}

/// Why something is not probed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// No module defines `malloc` and `free`.
    #[error(
        "no allocator found: no object defines malloc and free; a program that has just started may not have \
         loaded it yet (try again), a static one needs its symbols"
    )]
    NoAllocator,
    /// No allocator has this function.
    #[error("`{0}` not found")]
    NotFound(&'static str),
    /// One of the two that make an allocator.
    #[error("defines `{0}` but not `{1}`, so that its blocks could not be followed: not probed")]
    HalfAllocator(&'static str, &'static str),
    /// The dynamic loader's own allocator.
    ///
    /// It serves the loader until libc is there, never frees, and its blocks are no one's leak.
    #[error("the loader's own allocator, used before libc is loaded: not probed")]
    Loader,
    /// The function is chosen at load time, and the symbol leads to who chooses.
    #[error("`{0}` is an indirect function (STT_GNU_IFUNC), its resolver must not be probed")]
    Indirect(&'static str),
    /// The symbol does not lead to code in the file.
    #[error("`{0}` lies outside the code in the file")]
    OutsideCode(&'static str),
    /// Neither the entry nor anything cheaper can be probed.
    #[error("`{0}` cannot be probed: {1}")]
    Unprobeable(&'static str, Unprobeable),
    /// Two functions that mean different things share their code.
    #[error(
        "`{0}` is the same code as `{1}`, whose arguments mean something else: only the latter is probed"
    )]
    Conflict(&'static str, &'static str),
    /// The symbol tables are unusable.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// The headers are unusable.
    #[error("cannot read its headers: {0}")]
    Headers(Arc<TableError>),
}

/// All probe sites of a process, and what is missing from them.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The sites, by module and entry; each (module, address) once.
    pub sites: Vec<ProbeSite>,
    /// What is not probed, and why.
    pub problems: Vec<Problem>,
}

/// Finds every probe site among `modules`, which should be those that the process has mapped.
pub fn discover<'a>(modules: impl IntoIterator<Item = &'a Module>) -> Discovery {
    let mut discovery = Discovery::default();
    let mut defined = [false; FUNCTIONS.len()];
    for module in modules.into_iter().filter(|module| !module.is_vdso()) {
        let symbols = discovery.add_module(module);
        for symbol in symbols {
            if let Some(defined) = defined.get_mut(symbol.name) {
                *defined = true;
            }
        }
    }
    discovery.add_missing(&defined);
    discovery
}

impl Discovery {
    /// Adds the sites of one module. Returns what it defines, when it is an allocator.
    fn add_module(&mut self, module: &Module) -> Vec<FunctionSymbol> {
        match allocator_symbols(module) {
            Ok(symbols) => {
                self.add_sites(module, &symbols);
                symbols
            }
            Err(reason) => {
                self.problem(module, reason);
                Vec::new()
            }
        }
    }

    fn add_sites(&mut self, module: &Module, symbols: &[FunctionSymbol]) {
        if symbols.is_empty() {
            return;
        }
        let elf = match ElfView::parse(module.bytes()) {
            Ok(elf) => elf,
            Err(error) => return self.problem(module, Reason::Headers(Arc::new(error))),
        };
        // Names of one address, in the table's order: `symbols` is sorted by it.
        let mut by_address: BTreeMap<Svma, Vec<FunctionSymbol>> = BTreeMap::new();
        for symbol in symbols {
            by_address.entry(symbol.svma).or_default().push(*symbol);
        }
        for names in by_address.values() {
            match site(module, &elf, names) {
                Ok(site) => self.add_site(module, site, names),
                Err(reason) => self.problem(module, reason),
            }
        }
    }

    /// Adds a site with the other names of its code, as far as they mean the same.
    fn add_site(&mut self, module: &Module, mut site: ProbeSite, names: &[FunctionSymbol]) {
        let Some(function) = site.allocator_function() else {
            return;
        };
        for alias in names
            .iter()
            .skip(1)
            .filter_map(|symbol| FUNCTIONS.get(symbol.name))
        {
            if (alias.role, alias.shape) == (function.role, function.shape) {
                site.aliases.push(alias.name);
            } else {
                self.problem(module, Reason::Conflict(alias.name, function.name));
            }
        }
        self.sites.push(site);
    }

    fn add_missing(&mut self, defined: &[bool]) {
        let missing = |reason| Problem { module: None, reason };
        if !defined.contains(&true) {
            self.problems.push(missing(Reason::NoAllocator));
            return;
        }
        let absent = FUNCTIONS.iter().zip(defined).filter(|&(_, &defined)| !defined);
        let expected = absent.filter(|(function, _)| function.presence == Presence::Expected);
        self.problems
            .extend(expected.map(|(function, _)| missing(Reason::NotFound(function.name))));
    }

    fn problem(&mut self, module: &Module, reason: Reason) {
        self.problems.push(Problem {
            module: Some(module.path.clone()),
            reason,
        });
    }
}

/// What a module defines of [`FUNCTIONS`]; nothing when it is no allocator.
fn allocator_symbols(module: &Module) -> Result<Vec<FunctionSymbol>, Reason> {
    let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    let symbols = symbols::find(module.bytes(), &names)?;
    let defines = |name: &str| symbols.iter().any(|symbol| names.get(symbol.name) == Some(&name));
    match (defines("malloc"), defines("free")) {
        (true, true) if is_loader(module) => Err(Reason::Loader),
        (true, true) => Ok(symbols),
        (true, false) => Err(Reason::HalfAllocator("malloc", "free")),
        (false, true) => Err(Reason::HalfAllocator("free", "malloc")),
        (false, false) => Ok(Vec::new()),
    }
}

/// Whether this is glibc's loader. (musl's loader *is* its libc, and goes by another name.)
fn is_loader(module: &Module) -> bool {
    module
        .path
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"))
}

/// Where to probe the function called `name`, which is none of [`FUNCTIONS`], if the probe reads no arguments.
///
/// # Errors
///
/// There is no such function in the module, or it cannot be probed.
pub fn choose_site(module: &Module, name: &'static str) -> Result<Svma, Reason> {
    let symbols = symbols::find(module.bytes(), &[name])?;
    let symbol = symbols.first().ok_or(Reason::NotFound(name))?;
    if symbol.kind == SymbolKind::Indirect {
        return Err(Reason::Indirect(name));
    }
    let elf = ElfView::parse(module.bytes()).map_err(|error| Reason::Headers(Arc::new(error)))?;
    let code =
        function_code(module.bytes(), &elf, symbol.svma, symbol.size).ok_or(Reason::OutsideCode(name))?;
    let choice = sites::choose(&code, []).map_err(|why| Reason::Unprobeable(name, why))?;
    Ok(choice.svma)
}

/// The site for the code that has all of these names.
fn site(module: &Module, elf: &ElfView, names: &[FunctionSymbol]) -> Result<ProbeSite, Reason> {
    let first = names.first().ok_or(Reason::NoAllocator)?;
    let function = FUNCTIONS.get(first.name).ok_or(Reason::NoAllocator)?;
    if names.iter().any(|symbol| symbol.kind == SymbolKind::Indirect) {
        return Err(Reason::Indirect(function.name));
    }
    let size = names.iter().map(|symbol| symbol.size).max().unwrap_or(0);
    let outside = Reason::OutsideCode(function.name);
    let code = function_code(module.bytes(), elf, first.svma, size).ok_or_else(|| outside.clone())?;
    let choice = sites::choose(&code, function.shape.arguments())
        .map_err(|why| Reason::Unprobeable(function.name, why))?;
    Ok(ProbeSite {
        module: module.id,
        function: first.name,
        symbol: function.name.to_owned(),
        aliases: Vec::new(),
        entry: first.svma,
        svma: choice.svma,
        offset: elf.offset_of(choice.svma).ok_or(outside)?,
        cost: choice.cost,
        why: choice.why,
    })
}

/// A function within the executable segment that holds it.
fn function_code<'a>(bytes: &'a [u8], elf: &ElfView, entry: Svma, size: u64) -> Option<FunctionCode<'a>> {
    let holds = |segment: &&Segment| segment.executable && contains(&segment.file_backed(), entry);
    let segment = elf.segments().iter().find(holds)?;
    let start = usize::try_from(segment.offset.start.get()).ok()?;
    let end = usize::try_from(segment.offset.end.get()).ok()?;
    FunctionCode::new(bytes.get(start..end)?, segment.svma.start, entry, size)
}

#[cfg(test)]
mod tests;
