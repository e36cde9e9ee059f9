//! All sources of names for one object: its own symbols and debug information, and those of its separate
//! debug file.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use gimli::Dwarf;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSymbol, ReadRef, SectionFlags, SymbolFlags, elf};
use unwind_tables::addr::Svma;
use unwind_tables::elf::ElfView;

use super::debug_file::{DebugLinks, SupplementaryLink};
use super::debug_files::{DebugFile, DebugFiles};
use super::demangle::demangle;
use super::elf::{Elf, has_too_many_sections, parse_copied, parse_mapped};
use super::lines::Lines;
use super::live_code::LiveCode;
use super::mini_debug;
use super::reader::Reader;
use super::sections::{Budget, Content, Source, has_lines};
use super::split::SplitUnits;
use super::symbols::{RawSymbol, SymbolTable};
use leak_report::model::{Gap, Symbol, Symbolized};
use memleak_base::untrusted::{MAX_NAME, MAX_SECTIONS};

/// Maximum number of symbols that are read in one table, and of code symbols that are kept of one file. The
/// largest browsers have some two million.
const MAX_SYMBOLS: usize = 1 << 22;
/// Maximum length of all names of one file in bytes. Names can overlap, so the file's size is no bound.
const MAX_NAME_BYTES: usize = 1 << 28;

/// Symbols and debug information of one object.
pub(super) struct LoadedObject {
    symbols: SymbolTable,
    lines: Option<Lines>,
    /// Reason why names or lines are missing.
    gap: Option<Gap>,
    /// Bytes by which the heap grew during lookups in it.
    taken: usize,
}

impl LoadedObject {
    /// Reads the object at `path` with the content `bytes`, and its debug file if `files` has one.
    pub(super) fn load(bytes: &[u8], path: &Path, files: &DebugFiles) -> Self {
        let Some(own) = parse_mapped(bytes) else {
            return Self {
                symbols: SymbolTable::default(),
                lines: None,
                gap: Some(why_unreadable(bytes, path)),
                taken: 0,
            };
        };
        let debug = match has_lines(&own) && own.symbol_table().is_some() {
            true => None,
            false => files.debug_file(&DebugLinks::of(&own), path),
        };
        let symbols = symbols(&own, debug.as_ref(), function_after(bytes));
        let code = LiveCode::of(&own);
        let loader = LineLoader {
            files,
            object: path,
            code: &code,
        };
        let lines = match debug {
            _ if has_lines(&own) => Some(loader.load(&own, Content::Memory(bytes), Some(path))),
            Some(debug) => loader.load_debug(&debug),
            None => None,
        };
        let (lines, gap) = match lines {
            Some(Ok(lines)) => (Some(lines), None),
            Some(Err(gap)) => (None, Some(gap)),
            None => (None, symbols.is_empty().then_some(Gap::NoSymbols)),
        };
        Self {
            symbols,
            lines,
            gap,
            taken: 0,
        }
    }

    /// Adds to the bytes counted for it; returns the sum.
    pub(super) fn add_memory(&mut self, bytes: usize) -> usize {
        self.taken = self.taken.saturating_add(bytes);
        self.taken
    }

    /// Drops the debug information.
    pub(super) fn give_up_lines(&mut self) {
        (self.lines, self.gap, self.taken) = (None, Some(Gap::TooLarge), 0);
    }

    /// Names for `address`, where `lookup` is the address of the code to look up.
    pub(super) fn symbolize(&self, address: u64, lookup: u64) -> Symbolized {
        let (found, mut gap) = match self.lines.as_ref().map(|lines| lines.find(lookup)) {
            Some(Ok(found)) => (found, self.gap),
            Some(Err(gap)) => (Default::default(), Some(gap)),
            None => (Default::default(), self.gap),
        };
        let found_symbol = self.symbols.find(lookup);
        let folded = found_symbol.map(|symbol| self.symbols.folded_with(symbol));
        let symbol = found_symbol.map(|symbol| Symbol {
            name: demangle(symbol.name).into(),
            offset: Some(address.wrapping_sub(symbol.start)),
        });
        let by_lines = found.function.map(|name| Symbol { name, offset: None });
        let symbol = symbol.or(by_lines);
        gap = gap.or(found.gap);
        if symbol.is_none() {
            gap = gap.or(Some(Gap::NotInSymbol));
        }
        Symbolized {
            symbol,
            file: found.file,
            line: found.line,
            inlined: found.inlined,
            folded: folded.unwrap_or_default(),
            gap,
        }
    }

    /// Approximate memory use in bytes.
    pub(super) fn memory(&self) -> usize {
        let lines = self.lines.as_ref().map_or(0, Lines::memory);
        lines.saturating_add(self.symbols.memory()).max(self.taken)
    }
}

/// Returns the reason why a file cannot be parsed.
fn why_unreadable(bytes: &[u8], path: &Path) -> Gap {
    if !has_too_many_sections(bytes) {
        return Gap::Unreadable;
    }
    tracing::warn!(
        "no names for {}: it has more than {MAX_SECTIONS} sections; link it so that sections with the same \
         name are merged",
        path.display()
    );
    Gap::TooLarge
}

/// Loads the debug information of one object.
struct LineLoader<'a> {
    files: &'a DebugFiles,
    /// Path of the object.
    object: &'a Path,
    /// Its code.
    code: &'a Arc<LiveCode>,
}

impl LineLoader<'_> {
    /// Loads it from the debug file; `None` if that has none.
    fn load_debug(&self, debug: &DebugFile) -> Option<Result<Lines, Gap>> {
        let cache = ReadCache::new(&debug.file);
        let elf = parse_copied(&cache)?;
        has_lines(&elf).then(|| self.load(&elf, Content::File(&debug.file), debug.path.as_deref()))
    }

    /// Loads it from the file `elf`, at `path` unless it was fetched from a server.
    fn load<'d, R: ReadRef<'d>>(
        &self,
        elf: &Elf<'d, R>,
        content: Content<'_>,
        path: Option<&Path>,
    ) -> Result<Lines, Gap> {
        let mut budget = Budget::default();
        let code = Some(self.code);
        let mut dwarf = Source { elf, content, code }.dwarf(&mut budget)?;
        let link = SupplementaryLink::of(elf);
        let supplementary = link.map(|link| self.supplementary(&link, path, &mut budget));
        let gap = match supplementary {
            Some(Ok(supplementary)) => {
                dwarf.set_sup(supplementary);
                None
            }
            Some(Err(gap)) => Some(gap),
            None => None,
        };
        let paths = [Some(self.object), path.filter(|path| *path != self.object)];
        let objects = paths.into_iter().flatten().map(Path::to_owned).collect();
        let split = SplitUnits::new(self.files.roots.clone(), objects, self.code.clone(), budget);
        Lines::new(dwarf, self.code, split, gap)
    }

    /// Loads the supplementary file of a file at `path`.
    fn supplementary(
        &self,
        link: &SupplementaryLink,
        path: Option<&Path>,
        budget: &mut Budget,
    ) -> Result<Dwarf<Reader>, Gap> {
        let file = self.files.supplementary(link, path, self.object);
        let file = file.ok_or(Gap::NoSupplementaryFile)?;
        let cache = ReadCache::new(&file);
        let elf = parse_copied(&cache).ok_or(Gap::Malformed)?;
        let supplementary = Source {
            elf: &elf,
            content: Content::File(&file),
            code: None,
        };
        supplementary.dwarf(budget)
    }
}

/// Symbols of an object and its debug file; if neither has a `.symtab`, those of the `.gnu_debugdata` that
/// distributions leave in the object, too.
fn symbols<'a, R: ReadRef<'a>>(
    own: &Elf<'a, R>,
    debug: Option<&DebugFile>,
    function_after: impl Fn(u64) -> Option<u64>,
) -> SymbolTable {
    let mut raw = code_symbols(own);
    let cache = debug.map(|debug| ReadCache::new(&debug.file));
    let debug = cache.as_ref().and_then(parse_copied);
    if let Some(debug) = &debug {
        raw.extend(code_symbols(debug));
    }
    let has_table = own.symbol_table().is_some() || debug.is_some_and(|debug| debug.symbol_table().is_some());
    let mini = match has_table {
        true => None,
        false => mini_debug::read(own).ok().flatten(),
    };
    let mini = mini.as_deref().and_then(parse_mapped);
    if let Some(mini) = &mini {
        raw.extend(code_symbols(mini));
    }
    SymbolTable::new(raw, function_after)
}

/// Returns a lookup of the first function after an address, by unwind information.
fn function_after(bytes: &[u8]) -> impl Fn(u64) -> Option<u64> {
    let view = ElfView::parse_any(bytes).ok();
    move |address| {
        let start = view.as_ref()?.function_start_after(Svma::new(address))?;
        Some(start.get())
    }
}

/// Code symbols of both tables, up to the limits.
fn code_symbols<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<RawSymbol<'a>> {
    let section_ends = code_section_ends(elf);
    let name_bytes = Cell::new(0);
    elf.symbols()
        .take(MAX_SYMBOLS)
        .chain(elf.dynamic_symbols().take(MAX_SYMBOLS))
        .take_while(|_| name_bytes.get() <= MAX_NAME_BYTES)
        .filter_map(|symbol| code_symbol(&symbol, &section_ends, &name_bytes))
        .take(MAX_SYMBOLS)
        .collect()
}

/// Converts a symbol, if it is one of code. Adds the length of its name to `name_bytes`.
fn code_symbol<'a>(
    symbol: &impl ObjectSymbol<'a>,
    section_ends: &[Option<u64>],
    name_bytes: &Cell<usize>,
) -> Option<RawSymbol<'a>> {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
        return None;
    };
    let function = match st_info.st_type() {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
        elf::STT_NOTYPE => false,
        _ => return None,
    };
    let section_end = *section_ends.get(symbol.section_index()?.0)?;
    let name = symbol.name_bytes().ok();
    name_bytes.set(name_bytes.get() + name.map_or(MAX_NAME, <[u8]>::len));
    Some(RawSymbol {
        start: symbol.address(),
        size: symbol.size(),
        section_end: section_end?,
        name: name?,
        global: symbol.is_global(),
        function,
    })
}

/// End of each code section, by section number.
fn code_section_ends<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<Option<u64>> {
    let mut ends = Vec::new();
    for section in elf.sections() {
        let executable = matches!(
            section.flags(),
            SectionFlags::Elf { sh_flags, .. } if sh_flags.contains(elf::SHF_EXECINSTR)
        );
        let index = section.index().0;
        ends.resize(ends.len().max(index + 1), None);
        ends[index] = executable.then(|| section.address().saturating_add(section.size()));
    }
    ends
}
