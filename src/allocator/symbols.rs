//! Looks functions up in an ELF file by name.
//!
//! Three tables are read, since each can be all there is: `.symtab` (static executables), `.dynsym`
//! (stripped libraries), and the dynamic segment (files without section headers). Which of the
//! found functions is probed, and where, is decided elsewhere.

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::StringTable;
use object::read::elf::{FileHeader, GnuHashTable, HashTable, Sym};
use thiserror::Error;
use unwind_tables::addr::Svma;

use crate::base::untrusted::Untrusted;
use crate::process::dynamic::Dynamic;

type Header = FileHeader64<LittleEndian>;
type Symbol = elf::Sym64<LittleEndian>;
type Bytes<'a> = Untrusted<&'a [u8]>;
type Strings<'a> = StringTable<'a, Bytes<'a>>;

/// Symbols of one table that are looked at; the largest browsers have some two million.
const MAX_SYMBOLS: usize = 1 << 23;
/// Definitions that are believed. Allocators have a hundred, each once, or once in every part that was linked alone.
const MAX_FOUND: usize = 1024;
/// Bytes of a hash table that are looked at: 32 for each symbol of the largest.
const MAX_HASH_BYTES: usize = 256 << 20;

/// A definition of one of the names that were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionSymbol {
    /// Which name, as an index into the list that was asked for.
    pub name: usize,
    /// The function, or the resolver of an indirect one.
    pub svma: Svma,
    /// The function's length in bytes; 0 when the file does not say.
    pub size: u64,
    /// What is at the address.
    pub kind: SymbolKind,
    /// Whether the symbol is local: the name of another file's function too, perhaps.
    pub local: bool,
}

/// What a symbol's address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SymbolKind {
    /// The function.
    Function,
    /// A resolver that picks the function at load time (`STT_GNU_IFUNC`).
    Indirect,
}

/// The file's symbols are unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SymbolError {
    /// Its headers are.
    #[error("cannot read its symbols: {0}")]
    Headers(#[from] object::read::Error),
    /// No allocator is defined so often.
    #[error(
        "it defines more than {MAX_FOUND} functions of allocators, which none does: its symbols are not used"
    )]
    TooMany,
}

/// All definitions of `names`, ordered by name, then address, each address once per name.
///
/// Local symbols are not definitions: a `static` function called `free` is not the allocator's.
///
/// # Errors
///
/// [`SymbolError`].
pub fn find(elf: &[u8], names: &[&str]) -> Result<Vec<FunctionSymbol>, SymbolError> {
    let number = |name: &[u8]| names.iter().position(|wanted| wanted.as_bytes() == name);
    let mut found = scan(elf, number)?;
    found.retain(|symbol| !symbol.local);
    Ok(found)
}

/// The same for all functions, local ones too, whose name `number` gives a number.
///
/// # Errors
///
/// [`SymbolError`].
pub fn scan(
    file: &[u8],
    mut number: impl FnMut(&[u8]) -> Option<usize>,
) -> Result<Vec<FunctionSymbol>, SymbolError> {
    let elf = Untrusted::mapped(file);
    let header = Header::parse(elf)?;
    let endian = header.endian()?;
    let mut found = Vec::new();
    // Each table is taken by itself: a damaged section table leaves the dynamic segment.
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
    for symbol in symbols.iter().take(MAX_SYMBOLS) {
        let kind = match symbol.st_type() {
            elf::STT_FUNC => SymbolKind::Function,
            elf::STT_GNU_IFUNC => SymbolKind::Indirect,
            _ => continue,
        };
        let exported = matches!(
            symbol.st_bind(),
            elf::STB_GLOBAL | elf::STB_WEAK | elf::STB_GNU_UNIQUE
        );
        // A non-PIE executable gives functions that it only calls the address of their PLT entry.
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
            });
        }
    }
}

/// The dynamic symbols as the loader finds them: through `PT_DYNAMIC`.
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
