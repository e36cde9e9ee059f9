//! Looks up functions in an ELF file by name.
//!
//! Three tables are read, since each can be the only one: `.symtab` (static executables), `.dynsym` (stripped
//! libraries), and the dynamic segment (files without section headers). Callers decide which functions are
//! probed, and where.

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::StringTable;
use object::read::elf::{FileHeader, GnuHashTable, HashTable, Sym};
use thiserror::Error;
use unwind_tables::addr::Svma;

use memleak_base::untrusted::Untrusted;
use memleak_process::dynamic::Dynamic;

type Header = FileHeader64<LittleEndian>;
type Symbol = elf::Sym64<LittleEndian>;
type Bytes<'a> = Untrusted<&'a [u8]>;
type Strings<'a> = StringTable<'a, Bytes<'a>>;

/// Maximum number of symbols that are read in one table; the largest browsers have some two million.
const MAX_SYMBOLS: usize = 1 << 23;
/// Maximum number of definitions that are accepted. Allocators have a hundred, each once, or once in every
/// separately linked part.
const MAX_FOUND: usize = 1024;
/// Maximum number of bytes that are read of a hash table: 32 for each of the maximum number of symbols.
const MAX_HASH_BYTES: usize = 256 << 20;

/// A definition of one of the requested names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionSymbol {
    /// Index into the list of names, or the number given to [`scan`].
    pub name: usize,
    /// Address of the function, or of the resolver of an indirect one.
    pub svma: Svma,
    /// Length of the function in bytes; 0 if the file does not give it.
    pub size: u64,
    pub kind: SymbolKind,
    /// Set for a local symbol: another file's function may have the same name.
    pub local: bool,
    /// Set for a local symbol that was global until the linker hid it: all files of the program that use the
    /// name mean this function.
    pub hidden: bool,
}

/// Kind of code at a symbol's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SymbolKind {
    Function,
    /// A resolver that chooses the function at load time (`STT_GNU_IFUNC`).
    Indirect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SymbolError {
    #[error("cannot read its symbols: {0}")]
    Headers(#[from] object::read::Error),
    #[error(
        "ignoring its symbols: it defines more than {MAX_FOUND} allocator functions, which is implausible"
    )]
    TooMany,
}

/// All definitions of `names`, ordered by name, then address, each address once per name.
///
/// Local symbols are left out: a `static` function called `free` is not the allocator's.
pub fn find(elf: &[u8], names: &[&str]) -> Result<Vec<FunctionSymbol>, SymbolError> {
    let number = |name: &[u8]| names.iter().position(|wanted| wanted.as_bytes() == name);
    let mut found = scan(elf, number)?;
    found.retain(|symbol| !symbol.local);
    Ok(found)
}

/// All definitions, local ones too, of functions to whose name `number` gives a number; ordered by number,
/// then address.
pub fn scan(
    file: &[u8],
    mut number: impl FnMut(&[u8]) -> Option<usize>,
) -> Result<Vec<FunctionSymbol>, SymbolError> {
    let elf = Untrusted::mapped(file);
    let header = Header::parse(elf)?;
    let endian = header.endian()?;
    let mut found = Vec::new();
    // Tables are independent: a damaged section table leaves the dynamic segment.
    if let Ok(sections) = header.sections(endian, elf) {
        for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            if let Ok(table) = sections.symbols(endian, elf, kind) {
                collect(table.symbols(), table.strings(), &mut number, &mut found);
            }
        }
    }
    if found.is_empty()
        && let Some((symbols, strings)) = dynamic_symbols(file)
    {
        collect(symbols, strings, &mut number, &mut found);
    }
    if found.len() > MAX_FOUND {
        return Err(SymbolError::TooMany);
    }
    found.sort_unstable();
    found.dedup_by_key(|symbol| (symbol.name, symbol.svma));
    Ok(found)
}

fn collect(
    symbols: &[Symbol],
    strings: Strings<'_>,
    number: &mut impl FnMut(&[u8]) -> Option<usize>,
    found: &mut Vec<FunctionSymbol>,
) {
    let endian = LittleEndian;
    // GNU ld puts the symbols that it makes local behind those of all files, after the name of a file that is
    // empty. gold and lld leave them their visibility.
    let mut is_behind_files = false;
    for symbol in symbols.iter().take(MAX_SYMBOLS) {
        let kind = match symbol.st_type() {
            elf::STT_FUNC => SymbolKind::Function,
            elf::STT_GNU_IFUNC => SymbolKind::Indirect,
            elf::STT_FILE => {
                is_behind_files = symbol.name(endian, strings).is_ok_and(<[u8]>::is_empty);
                continue;
            }
            _ => continue,
        };
        let exported = matches!(
            symbol.st_bind(),
            elf::STB_GLOBAL | elf::STB_WEAK | elf::STB_GNU_UNIQUE
        );
        // Undefined symbols can have an address: in a non-PIE executable, that of the PLT entry of a function
        // that it only calls.
        if symbol.st_shndx(endian) == elf::SHN_UNDEF {
            continue;
        }
        let Ok(name) = symbol.name(endian, strings) else {
            continue;
        };
        if let Some(name) = number(name) {
            if found.len() > MAX_FOUND {
                return;
            }
            let svma = Svma::new(symbol.st_value(endian));
            found.push(FunctionSymbol {
                name,
                svma,
                size: symbol.st_size(endian),
                kind,
                local: !exported,
                hidden: !exported && (is_behind_files || is_hidden(symbol)),
            });
        }
    }
}

fn is_hidden(symbol: &Symbol) -> bool {
    matches!(symbol.st_visibility(), elf::STV_HIDDEN | elf::STV_INTERNAL)
}

/// The dynamic symbols, located through `PT_DYNAMIC` as the loader does.
fn dynamic_symbols(elf: &[u8]) -> Option<(&[Symbol], Strings<'_>)> {
    let endian = LittleEndian;
    let dynamic = Dynamic::of(elf)?;
    let hash_from = |tag| {
        let bytes = dynamic.table(tag)?;
        Some(bytes.get(..MAX_HASH_BYTES).unwrap_or(bytes))
    };
    let gnu_hash = || {
        let table = GnuHashTable::<Header>::parse(endian, hash_from(elf::DT_GNU_HASH)?).ok()?;
        table.symbol_table_length(endian)
    };
    let hash = || {
        let table = HashTable::<Header>::parse(endian, hash_from(elf::DT_HASH)?).ok()?;
        Some(table.symbol_table_length())
    };
    let count = usize::try_from(gnu_hash().or_else(hash)?).ok()?;
    let (symbols, _) = object::pod::slice_from_bytes(dynamic.table(elf::DT_SYMTAB)?, count).ok()?;
    Some((symbols, dynamic.strings()?))
}

#[cfg(test)]
mod tests;
