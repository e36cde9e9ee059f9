//! Everything names come from for one object: its own symbols and debug information, and those of its
//! separate debug file.

use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, ReadRef, SectionFlags, SymbolFlags, elf};

use super::debug_file::DebugLinks;
use super::demangle::demangle;
use super::frame::{Gap, Symbol, Symbolized};
use super::lines::{Lines, has_lines};
use super::symbols::{RawSymbol, SymbolTable};

type Elf<'a, R> = ElfFile64<'a, LittleEndian, R>;

/// The most code symbols taken from one file. The largest browsers have some two million.
const MAX_SYMBOLS: usize = 1 << 23;
/// The most bytes of names taken from one file. Names can overlap, so the file's size is no bound.
const MAX_NAME_BYTES: usize = 1 << 29;

/// The names of one object.
pub(super) struct LoadedObject {
    symbols: SymbolTable,
    lines: Option<Lines>,
    /// Why there is less than there could be.
    gap: Option<Gap>,
}

impl LoadedObject {
    /// Reads the object whose file holds `bytes`, and its debug file if it has one under one of `roots`.
    pub(super) fn load(bytes: &[u8], path: &Path, roots: &[PathBuf]) -> Self {
        let Ok(own) = Elf::parse(bytes) else {
            return Self::nameless(Gap::Unreadable);
        };
        if has_lines(&own) && own.symbol_table().is_some() {
            return Self::of(&own, None::<&Elf<'_, &[u8]>>);
        }
        let Some(file) = DebugLinks::of(&own).find(path, roots) else {
            return Self::of(&own, None::<&Elf<'_, &[u8]>>);
        };
        let cache = ReadCache::new(file);
        Self::of(&own, Elf::parse(&cache).ok().as_ref())
    }

    fn nameless(gap: Gap) -> Self {
        Self {
            symbols: SymbolTable::default(),
            lines: None,
            gap: Some(gap),
        }
    }

    fn of<'a, R: ReadRef<'a>, D: ReadRef<'a>>(own: &Elf<'a, R>, debug: Option<&Elf<'a, D>>) -> Self {
        let mut raw = code_symbols(own);
        raw.extend(debug.into_iter().flat_map(code_symbols));
        let symbols = SymbolTable::new(raw);
        let lines = match debug {
            _ if has_lines(own) => Some(Lines::load(own)),
            Some(debug) if has_lines(debug) => Some(Lines::load(debug)),
            _ => None,
        };
        let (lines, gap) = match lines {
            Some(Ok(lines)) => (Some(lines), None),
            Some(Err(gap)) => (None, Some(gap)),
            None => (None, symbols.is_empty().then_some(Gap::NoSymbols)),
        };
        Self { symbols, lines, gap }
    }

    /// What is known of `address`, where the code to look up is at `lookup`.
    pub(super) fn symbolize(&self, address: u64, lookup: u64) -> Symbolized {
        let (found, mut gap) = match self.lines.as_ref().map(|lines| lines.find(lookup)) {
            Some(Ok(found)) => (found, self.gap),
            Some(Err(gap)) => (Default::default(), Some(gap)),
            None => (Default::default(), self.gap),
        };
        let symbol = self.symbols.find(lookup).map(|symbol| Symbol {
            name: demangle(symbol.name),
            offset: Some(address.wrapping_sub(symbol.start)),
        });
        let by_lines = found.function.map(|name| Symbol { name, offset: None });
        let symbol = symbol.or(by_lines);
        if symbol.is_none() {
            gap = gap.or(Some(Gap::NotInSymbol));
        }
        Symbolized {
            symbol,
            file: found.file,
            line: found.line,
            inlined: found.inlined,
            gap,
        }
    }

    /// About how much memory this takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        let lines = self.lines.as_ref().map_or(0, Lines::memory);
        lines.saturating_add(self.symbols.memory())
    }
}

/// The symbols of both tables that lie in code, up to the limits.
fn code_symbols<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<RawSymbol<'a>> {
    let section_ends = code_section_ends(elf);
    let mut name_bytes = 0;
    elf.symbols()
        .chain(elf.dynamic_symbols())
        .filter_map(|symbol| code_symbol(&symbol, &section_ends))
        .take(MAX_SYMBOLS)
        .take_while(|symbol| {
            name_bytes += symbol.name.len();
            name_bytes <= MAX_NAME_BYTES
        })
        .collect()
}

fn code_symbol<'a>(symbol: &impl ObjectSymbol<'a>, section_ends: &[Option<u64>]) -> Option<RawSymbol<'a>> {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
        return None;
    };
    let function = match st_info.st_type() {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
        elf::STT_NOTYPE => false,
        _ => return None,
    };
    let section_end = *section_ends.get(symbol.section_index()?.0)?;
    Some(RawSymbol {
        start: symbol.address(),
        size: symbol.size(),
        section_end: section_end?,
        name: symbol.name_bytes().ok()?,
        global: symbol.is_global(),
        function,
    })
}

/// The end of each section that holds code, by section number.
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
