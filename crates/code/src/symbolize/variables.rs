//! Variables of an object by address: names from its symbol tables, declarations from DWARF.
//!
//! A name is that of the symbol that contains the address, never of the nearest one. Files are untrusted.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSymbol, ReadRef, SectionFlags, SymbolFlags, elf};

use super::debug_file::DebugLinks;
use super::debug_files::{DebugFile, DebugFiles};
use super::declarations::{self, Declared};
use super::demangle::demangle;
use super::elf::{Elf, parse_copied, parse_mapped};
use super::sections::{Budget, Content, Source, has_lines};
use memleak_base::untrusted::MAX_NAME;

/// Maximum number of symbols that are read in one table, and that are kept of one object.
const MAX_SYMBOLS: usize = 1 << 22;
/// Maximum bytes of the names that are kept of one object.
const MAX_NAME_BYTES: usize = 1 << 28;
/// Maximum number of symbols before an address that are checked. Symbols that end before the address are
/// nested in the one that contains it, or overlap with it.
const MAX_STEPS: usize = 16;

/// Place of a variable in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VariablePlace {
    /// SVMA.
    Memory(u64),
    /// Offset in the object's thread-local storage.
    ThreadLocal(u64),
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name as in the symbol table, without a version.
    pub mangled: Vec<u8>,
    /// Place of its first byte.
    pub begin: VariablePlace,
}

impl Variable {
    /// Name for people.
    pub fn name(&self) -> String {
        demangle(&self.mangled)
    }
}

/// Variables of one object.
#[derive(Debug, Default)]
pub struct Variables {
    memory: Table,
    thread_local: Table,
    /// Address range and name of each section, ascending.
    sections: Vec<(Range<u64>, String)>,
    /// Bytes of the object's thread-local storage, and its alignment.
    pub storage: Option<(u64, u64)>,
}

/// Symbols of one address space, ascending.
#[derive(Debug, Default)]
struct Table {
    symbols: Vec<RawVariable>,
    names: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct RawVariable {
    start: u64,
    size: u64,
    is_global: bool,
    /// Start of its name in `Table::names`, and length.
    name: (usize, usize),
}

/// Finds variables in objects and in their debug files.
pub struct VariableFinder {
    files: DebugFiles,
}

impl VariableFinder {
    /// Looks for separate debug files under each of `debug_roots` in turn.
    pub fn new(debug_roots: Vec<PathBuf>) -> Self {
        Self {
            files: DebugFiles::new(debug_roots),
        }
    }

    /// Reads the names of the object at `path` with the content `bytes`; there are none if it cannot be read.
    pub fn variables(&self, bytes: &[u8], path: &Path) -> Variables {
        let Some(own) = parse_mapped(bytes) else {
            return Variables::default();
        };
        let mut variables = Variables {
            sections: sections(&own),
            storage: storage(&own),
            ..Variables::default()
        };
        let name_bytes = Cell::new(0);
        variables.add(&own, &name_bytes);
        if own.symbol_table().is_none()
            && let Some(debug) = self.debug_file(&own, path)
        {
            let cache = ReadCache::new(&debug.file);
            if let Some(debug) = parse_copied(&cache) {
                variables.add(&debug, &name_bytes);
            }
        }
        variables.memory.sort();
        variables.thread_local.sort();
        variables
    }

    /// Finds where the variables that begin at `places` are declared.
    pub fn declarations(
        &self,
        bytes: &[u8],
        path: &Path,
        places: &HashSet<VariablePlace>,
    ) -> HashMap<VariablePlace, Declared> {
        let Some(own) = parse_mapped(bytes).filter(|_| !places.is_empty()) else {
            return HashMap::new();
        };
        let mut budget = Budget::default();
        let dwarf = if has_lines(&own) {
            let content = Content::Memory(bytes);
            Source {
                elf: &own,
                content,
                code: None,
            }
            .dwarf(&mut budget)
        } else {
            let Some(debug) = self.debug_file(&own, path) else {
                return HashMap::new();
            };
            let cache = ReadCache::new(&debug.file);
            let Some(elf) = parse_copied(&cache).filter(has_lines_of) else {
                return HashMap::new();
            };
            let content = Content::File(&debug.file);
            Source {
                elf: &elf,
                content,
                code: None,
            }
            .dwarf(&mut budget)
        };
        dwarf.map_or_else(|_| HashMap::new(), |dwarf| declarations::find(&dwarf, places))
    }

    fn debug_file<'a, R: ReadRef<'a>>(&self, own: &Elf<'a, R>, path: &Path) -> Option<DebugFile> {
        self.files.debug_file(&DebugLinks::of(own), path)
    }
}

fn has_lines_of<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> bool {
    has_lines(elf)
}

impl Variables {
    /// Finds the variable that contains `place`.
    pub fn find(&self, place: VariablePlace) -> Option<Variable> {
        let (table, address) = match place {
            VariablePlace::Memory(svma) => (&self.memory, svma),
            VariablePlace::ThreadLocal(offset) => (&self.thread_local, offset),
        };
        let (name, start) = table.find(address)?;
        Some(Variable {
            mangled: name.to_vec(),
            begin: match place {
                VariablePlace::Memory(_) => VariablePlace::Memory(start),
                VariablePlace::ThreadLocal(_) => VariablePlace::ThreadLocal(start),
            },
        })
    }

    /// Name and first address of the section that contains `svma`.
    pub fn section(&self, svma: u64) -> Option<(&str, u64)> {
        let after = self.sections.partition_point(|(range, _)| range.start <= svma);
        let (range, name) = self.sections.get(after.checked_sub(1)?)?;
        range.contains(&svma).then_some((name.as_str(), range.start))
    }

    /// Adds the symbols of both tables of `elf`.
    fn add<'a, R: ReadRef<'a>>(&mut self, elf: &Elf<'a, R>, name_bytes: &Cell<usize>) {
        let symbols = elf.symbols().take(MAX_SYMBOLS);
        for symbol in symbols.chain(elf.dynamic_symbols().take(MAX_SYMBOLS)) {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
                continue;
            };
            let table = match st_info.st_type() {
                elf::STT_OBJECT | elf::STT_COMMON => &mut self.memory,
                elf::STT_TLS => &mut self.thread_local,
                _ => continue,
            };
            if symbol.section_index().is_none() || symbol.size() == 0 || table.symbols.len() == MAX_SYMBOLS {
                continue;
            }
            let Ok(name) = symbol.name_bytes() else {
                name_bytes.set(name_bytes.get() + MAX_NAME);
                continue;
            };
            let version = name.iter().position(|&byte| byte == b'@');
            let name = &name[..version.unwrap_or(name.len())];
            name_bytes.set(name_bytes.get() + name.len());
            if name_bytes.get() > MAX_NAME_BYTES {
                return;
            }
            table.add(symbol.address(), symbol.size(), symbol.is_global(), name);
        }
    }
}

impl Table {
    fn add(&mut self, start: u64, size: u64, is_global: bool, name: &[u8]) {
        let place = (self.names.len(), name.len());
        self.names.extend_from_slice(name);
        self.symbols.push(RawVariable {
            start,
            size,
            is_global,
            name: place,
        });
    }

    fn sort(&mut self) {
        // `find` takes the last symbol of those at one address: a global one, then the smaller one.
        self.symbols
            .sort_by_key(|symbol| (symbol.start, symbol.is_global, u64::MAX - symbol.size));
    }

    fn find(&self, address: u64) -> Option<(&[u8], u64)> {
        let after = self.symbols.partition_point(|symbol| symbol.start <= address);
        let before = self.symbols[..after].iter().rev().take(MAX_STEPS);
        let holds = |symbol: &&RawVariable| address - symbol.start < symbol.size;
        let found = { before }.find(holds)?;
        let (at, length) = found.name;
        Some((self.names.get(at..at + length)?, found.start))
    }
}

/// Sections that have memory in the process, ascending.
fn sections<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<(Range<u64>, String)> {
    let allocated = |flags| matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.contains(elf::SHF_ALLOC) && !sh_flags.contains(elf::SHF_TLS));
    let sections = elf.sections().filter(|section| allocated(section.flags()));
    let mut sections: Vec<_> = sections
        .map(|section| {
            let end = section.address().saturating_add(section.size());
            let name = String::from_utf8_lossy(section.name_bytes().unwrap_or_default()).into_owned();
            (section.address()..end, name)
        })
        .collect();
    sections.sort_by_key(|(range, _)| range.start);
    sections
}

/// Bytes and alignment of thread-local storage.
fn storage<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Option<(u64, u64)> {
    use object::read::elf::ProgramHeader;
    let endian = object::LittleEndian;
    let mut headers = elf.elf_program_headers().iter();
    let header = headers.find(|header| header.p_type(endian) == elf::PT_TLS)?;
    Some((header.p_memsz(endian), header.p_align(endian).max(1)))
}
