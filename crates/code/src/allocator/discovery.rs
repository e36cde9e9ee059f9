//! Finds the allocators among a process's modules and chooses their probe sites.
//!
//! *All* allocators are probed, an interposed libc too: this covers callers that reach libc's `malloc` by
//! another way than the symbol, and a call that passes through two allocators counts once, since only the
//! outermost call on a thread is recorded.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use memchr::memmem;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use unwind_tables::Architecture;
use unwind_tables::addr::{FileOffset, Svma, contains};
use unwind_tables::elf::{ElfView, Segment};

use super::catalog::Catalog;
use super::definitions::{Definition, KnownFunctions, definitions, without_forwarders};
use super::flow::{Code, NoExits};
use super::functions::{AllocFunction, Family, Presence, Returns, Role};
use super::linkage::Linkage;
use super::probing::{NOP, NOP5, NOP10, SiteCost};
use super::problem::{Problem, Reason};
use super::sites::{self, FunctionCode, SiteReason};
use super::symbols::{self, SymbolKind};
use super::usdt::{self, Argument, UsdtProbe};
use leak_report::model::Name;
use memleak_base::parallel;
use memleak_process::python::has_lock;
use memleak_process::{Module, ModuleId};

/// An instruction to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSite {
    pub module: ModuleId,
    /// Number of the function in the catalog.
    pub number: usize,
    pub function: AllocFunction,
    /// Other traced names of the same code, such as `memalign` for `aligned_alloc`.
    pub aliases: Vec<Name>,
    /// Address of the function.
    pub entry: Svma,
    /// Address of the probed instruction.
    pub svma: Svma,
    /// File offset of `svma`, by which a probe is attached.
    pub offset: FileOffset,
    pub cost: SiteCost,
    /// Reason for the choice of the instruction.
    pub why: SiteReason,
    /// The `ret` instructions that end the calls of a function that can throw; `None` for others.
    pub rets: Option<Vec<FileOffset>>,
    /// Set if the function allocates without calling another traced function.
    pub leaf: bool,
}

impl ProbeSite {
    /// Name for messages, such as `malloc+0x4`: the function, and the bytes from its entry to the probe.
    pub fn place(&self) -> String {
        match self.svma.offset_from(self.entry) {
            0 => self.function.name.to_string(),
            offset => format!("{}+{offset:#x}", self.function.name),
        }
    }
}

/// A USDT probe by which a module announces blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsdtSite {
    pub module: ModuleId,
    /// Number in the catalog of [`usdt::ALLOCATION`] or [`usdt::FREE`].
    pub number: usize,
    pub function: AllocFunction,
    /// File offset of the instruction.
    pub offset: FileOffset,
    /// File offset of a [`NOP10`] behind it, which can be probed instead on kernels that handle it well.
    pub nop10: Option<FileOffset>,
    /// File offset of the counter of attached tracers.
    pub semaphore: Option<FileOffset>,
    /// Places of the arguments that are read.
    pub arguments: Vec<Argument>,
    /// Mean number of bytes between the blocks that it announces, if that is known.
    pub distance: Option<u64>,
}

/// All probe sites of a process, and the problems found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The sites, by module and entry; each (module, address) once.
    pub sites: Vec<ProbeSite>,
    /// USDT probes that announce blocks, by module.
    pub usdt: Vec<UsdtSite>,
    /// Functions and modules that are not probed, with the reason.
    pub problems: Vec<Problem>,
}

/// Finds every probe site among `modules`, which should be those that the process has mapped.
pub fn discover<'a>(modules: impl IntoIterator<Item = &'a Module>, catalog: &mut Catalog) -> Discovery {
    let mut discovery = Discovery::default();
    let mut nameless = Vec::new();
    for module in modules.into_iter().filter(|module| !module.is_vdso()) {
        if catalog.selection.admits(&module.path) {
            discovery.add_usdt(module, catalog);
            if is_sampler(module) {
                continue;
            }
            nameless.extend(discovery.add_module(module, catalog));
            module.release();
        }
    }
    discovery.add_stripped(nameless);
    discovery.add_missing(catalog);
    discovery
}

impl Discovery {
    /// Adds the sites of one module, or returns it if it defines no allocator function.
    fn add_module<'a>(&mut self, module: &'a Module, catalog: &mut Catalog) -> Option<&'a Module> {
        match definitions(module, catalog) {
            Ok((found, problems)) => {
                for reason in problems {
                    self.problem(module, reason);
                }
                if found.is_empty() {
                    return Some(module);
                }
                if module.probe_path().is_none() {
                    self.problem(module, Reason::NoFile);
                    return None;
                }
                self.add_sites(module, found, catalog);
            }
            Err(reason) => self.problem(module, reason),
        }
        None
    }

    /// Adds a module's USDT probes that announce blocks, if there are some for allocations and some for
    /// frees.
    fn add_usdt(&mut self, module: &Module, catalog: &Catalog) {
        let Ok(elf) = ElfView::parse(module.bytes()) else {
            return;
        };
        let mut sites = Vec::new();
        for probe in usdt::probes(module.bytes(), &elf) {
            match usdt_site(module, &elf, &probe, catalog) {
                Ok(site) => sites.extend(site),
                Err(reason) => self.problem(module, reason),
            }
        }
        let has = |role| sites.iter().any(|site| site.function.role == role);
        if has(Role::Allocate) && has(Role::Free) {
            self.usdt.extend(sites);
        }
    }

    /// Reports the allocators in modules that have no symbols of an allocator.
    fn add_stripped(&mut self, modules: Vec<&Module>) {
        let mut found = parallel::for_each(modules, |module| {
            let reason = stripped_allocator(module).map(|allocator| match allocator {
                MIMALLOC if has_lock(module.bytes()) => Reason::PythonWithLock,
                _ => Reason::Stripped(allocator),
            });
            module.release();
            (module, reason)
        });
        found.sort_unstable_by_key(|(module, _)| module.id);
        for (module, reason) in found {
            if let Some(reason) = reason {
                self.problem(module, reason);
            }
        }
    }

    /// Adds the sites of one module, given the functions that it defines.
    fn add_sites(&mut self, module: &Module, found: Vec<Definition>, catalog: &mut Catalog) {
        let elf = match ElfView::parse(module.bytes()) {
            Ok(elf) => elf,
            Err(error) => return self.problem(module, Reason::Headers(Arc::new(error))),
        };
        let linkage = Linkage::of(module.bytes());
        let found = without_forwarders(module, &elf, &linkage, found, catalog);
        let of_rust = |definition: &Definition| definition.function.family == Family::Rust;
        if found.iter().any(of_rust) {
            self.problem(module, Reason::RustAllocator);
        }
        let code = Code::new(module.bytes(), &elf, &linkage);
        // The names of each address stay in the catalog's order, by which definitions are sorted.
        let mut by_address: BTreeMap<Svma, Vec<&Definition>> = BTreeMap::new();
        for definition in &found {
            by_address
                .entry(definition.symbol.svma)
                .or_default()
                .push(definition);
        }
        for names in by_address.values() {
            let always = |definition: &&Definition| definition.function.returns == Returns::Always;
            let by_rets = !names.iter().all(always);
            let exits = |entry| {
                by_rets.then(|| code.exits(entry, &KnownFunctions::of(&found, false, entry, catalog)))
            };
            match site(module, &elf, names, exits) {
                Ok(mut site) => {
                    let others = KnownFunctions::of(&found, false, site.entry, catalog);
                    site.leaf = site.function.role == Role::Allocate && code.is_leaf(site.entry, &others);
                    self.add_site(module, site, names);
                }
                Err(reason) => self.problem(module, reason),
            }
        }
    }

    /// Adds a site with the other names of its code that have the same role and shape.
    fn add_site(&mut self, module: &Module, mut site: ProbeSite, names: &[&Definition]) {
        for alias in names.iter().skip(1).map(|definition| &definition.function) {
            if (alias.role, alias.shape) == (site.function.role, site.function.shape) {
                site.aliases.push(alias.name.clone());
            } else {
                let names = (alias.name.clone(), site.function.name.clone());
                self.problem(module, Reason::Conflict(names.0, names.1));
            }
        }
        self.sites.push(site);
    }

    fn add_missing(&mut self, catalog: &Catalog) {
        let missing = |reason| Problem { module: None, reason };
        if self.sites.is_empty() {
            self.problems.push(missing(Reason::NoAllocator));
            return;
        }
        let is_found = |name: &Name| {
            let mut sites = self.sites.iter();
            sites.any(|site| site.function.name == *name || site.aliases.contains(name))
        };
        let has_libc = self.sites.iter().any(|site| site.function.family == Family::Libc);
        let expected = |function: &&AllocFunction| {
            has_libc && function.presence == Presence::Expected || function.family == Family::Given
        };
        let absent = catalog
            .functions()
            .filter(|function| expected(function) && !is_found(&function.name));
        let absent: Vec<_> = absent
            .map(|function| missing(Reason::NotFound(function.name.clone())))
            .collect();
        self.problems.extend(absent);
    }

    fn problem(&mut self, module: &Module, reason: Reason) {
        self.problems.push(Problem {
            module: Some(module.path.clone()),
            reason,
        });
    }
}

/// Symbol of a counter that `libmemleak.so` has for tracers: blocks that it chose and could not announce.
const NOT_ANNOUNCED: &str = "memleak_samples_not_announced";

/// Returns true if a module is `libmemleak.so`, of any version: its functions only forward calls to another
/// allocator.
pub fn is_sampler(module: &Module) -> bool {
    let name = module.path.file_name().map(OsStr::as_encoded_bytes);
    name.is_some_and(|name| name.starts_with(b"libmemleak")) && is_sampler_file(module.bytes())
}

/// Returns true if a file is `libmemleak.so`, of any version, by a symbol that it has for tracers.
pub fn is_sampler_file(bytes: &[u8]) -> bool {
    memmem::find(bytes, format!("\0{NOT_ANNOUNCED}\0").as_bytes()).is_some()
}

/// Address of the 64-bit counter of blocks that a `libmemleak.so` chose and could not announce.
pub fn not_announced_counter(sampler: &[u8]) -> Option<Svma> {
    let elf = ElfFile64::<LittleEndian>::parse(sampler).ok()?;
    let counter = elf
        .dynamic_symbols()
        .find(|symbol| symbol.name() == Ok(NOT_ANNOUNCED))?;
    Some(Svma::new(counter.address()))
}

const MIMALLOC: &str = "mimalloc";

/// Texts that are unique to an allocator, with its name.
pub(super) const TEXTS: &[(&[u8], &str)] = &[
    (b"<jemalloc>: ", "jemalloc"),
    (b"tcmalloc: large alloc ", "tcmalloc"),
    (b"TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES", "tcmalloc"),
    (b"mimalloc: warning: ", MIMALLOC),
    (
        b"GC Warning: Repeated allocation of very large block",
        "the Boehm collector",
    ),
];

/// Name of the allocator whose message texts an object contains.
fn stripped_allocator(module: &Module) -> Option<&'static str> {
    /// Maximum number of bytes that are searched.
    const MAX: usize = 64 << 20;
    let elf = ElfView::parse(module.bytes()).ok()?;
    // Compilers put texts here. Most of a file is code, symbols and relocations, which take longer to search
    // than its unwind table takes to build.
    let bytes = match elf.section_range(b".rodata") {
        Some(range) => {
            let end = usize::try_from(range.end.get()).ok()?;
            module
                .bytes()
                .get(usize::try_from(range.start.get()).ok()?..end)?
        }
        None => module.bytes(),
    };
    let bytes = bytes.get(..MAX).unwrap_or(bytes);
    let found = TEXTS.iter().find(|(text, _)| memmem::find(bytes, text).is_some());
    found.map(|&(_, name)| name)
}

/// Chooses the probe site of the function `name`, which is not an allocator's, for a probe that reads no
/// arguments.
pub fn choose_site(module: &Module, name: &'static str) -> Result<Svma, Reason> {
    let symbols = symbols::find(module.bytes(), &[name])?;
    let symbol = symbols.first().ok_or(Reason::NotFound(name.into()))?;
    if symbol.kind == SymbolKind::Indirect {
        return Err(Reason::Indirect(name.into()));
    }
    let elf = ElfView::parse(module.bytes()).map_err(|error| Reason::Headers(Arc::new(error)))?;
    let code = function_code(module.bytes(), &elf, symbol.svma, symbol.size)
        .ok_or(Reason::OutsideCode(name.into()))?;
    let choice = sites::choose(&code, []).map_err(|why| Reason::Unprobeable(name.into(), why))?;
    Ok(choice.svma)
}

/// Chooses the site for the code that has all of these names.
fn site(
    module: &Module,
    elf: &ElfView,
    names: &[&Definition],
    exits: impl FnOnce(Svma) -> Option<Result<Vec<Svma>, NoExits>>,
) -> Result<ProbeSite, Reason> {
    let Definition { function, symbol } = names.first().ok_or(Reason::NoAllocator)?;
    let name = || function.name.clone();
    if names
        .iter()
        .any(|definition| definition.symbol.kind == SymbolKind::Indirect)
    {
        return Err(Reason::Indirect(name()));
    }
    let size = names
        .iter()
        .map(|definition| definition.symbol.size)
        .max()
        .unwrap_or(0);
    let outside = || Reason::OutsideCode(name());
    let code = function_code(module.bytes(), elf, symbol.svma, size).ok_or_else(outside)?;
    let choice =
        sites::choose(&code, function.shape.arguments()).map_err(|why| Reason::Unprobeable(name(), why))?;
    let rets = exits(symbol.svma)
        .map(|exits| {
            let exits = exits.map_err(|why| match function.returns {
                Returns::Anywhere => Reason::NoExitsOfGiven(name(), why),
                Returns::Always | Returns::OrThrows => Reason::NoExits(name(), why),
            })?;
            exits
                .iter()
                .map(|&ret| elf.offset_of(ret).ok_or_else(outside))
                .collect()
        })
        .transpose()?;
    Ok(ProbeSite {
        module: module.id,
        number: symbol.name,
        function: function.clone(),
        aliases: Vec::new(),
        entry: symbol.svma,
        svma: choice.svma,
        offset: elf.offset_of(choice.svma).ok_or_else(outside)?,
        cost: choice.cost,
        why: choice.why,
        rets,
        leaf: false,
    })
}

/// Finds the places in the file that a USDT probe names; `None` if it does not announce blocks.
fn usdt_site(
    module: &Module,
    elf: &ElfView<'_>,
    probe: &UsdtProbe,
    catalog: &Catalog,
) -> Result<Option<UsdtSite>, Reason> {
    /// Numbers of arguments: the pointer of a freed block; pointer, size, and weighted bytes of an allocated
    /// one.
    const OF_FREE: usize = 1;
    const OF_ALLOCATION: usize = 3;
    let known = catalog.number(probe.name.as_bytes());
    let Some((number, function)) = known.and_then(|number| Some((number, catalog.get(number)?))) else {
        return Ok(None);
    };
    let name = || function.name.clone();
    let wanted = match function.role {
        Role::Free => OF_FREE,
        Role::Allocate | Role::Resize | Role::ResizeOrFree | Role::ResizeInPlace => OF_ALLOCATION,
    };
    let arguments = usdt::arguments(&probe.arguments, elf.architecture(), wanted)
        .map_err(|error| Reason::Usdt(name(), error))?;
    let offset_of = |svma| elf.offset_of(svma).ok_or_else(|| Reason::OutsideCode(name()));
    let offset = offset_of(probe.svma)?;
    let at = usize::try_from(offset.get()).ok();
    let code = at
        .and_then(|at| module.bytes().get(at..))
        .filter(|_| elf.architecture() == Architecture::X86_64)
        .unwrap_or_default();
    if code.starts_with(&NOP5) {
        return Err(Reason::UsdtLongNop(name()));
    }
    let nop10 = code.strip_prefix(&[NOP]).filter(|rest| rest.starts_with(&NOP10));
    Ok(Some(UsdtSite {
        module: module.id,
        number,
        function: function.clone(),
        offset,
        nop10: nop10.and_then(|_| offset.checked_add(1)),
        semaphore: probe.semaphore.map(offset_of).transpose()?,
        arguments,
        distance: probe.distance,
    }))
}

/// Code of a function, within the executable segment that contains it.
pub fn function_code<'a>(bytes: &'a [u8], elf: &ElfView, entry: Svma, size: u64) -> Option<FunctionCode<'a>> {
    let holds = |segment: &&Segment| segment.executable && contains(&segment.file_backed(), entry);
    let segment = elf.segments().iter().find(holds)?;
    let start = usize::try_from(segment.offset.start.get()).ok()?;
    let end = usize::try_from(segment.offset.end.get()).ok()?;
    FunctionCode::new(
        elf.architecture(),
        bytes.get(start..end)?,
        segment.svma.start,
        entry,
        size,
    )
}

#[cfg(test)]
mod tests;
