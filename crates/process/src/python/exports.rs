//! Exported symbols of an ELF file by name, and its loaded bytes by address. The file is untrusted.

use object::elf::{self, FileHeader64, Sym64};
use object::read::StringTable;
use object::read::elf::{FileHeader, Sym};
use object::{LittleEndian, ReadRef};
use unwind_tables::addr::{FileOffset, Svma};
use unwind_tables::elf::ElfView;

use memleak_base::untrusted::Untrusted;

const ENDIAN: LittleEndian = LittleEndian;
/// Maximum number of symbols of a table that are read. libpython has three thousand.
const MAX_SYMBOLS: usize = 1 << 18;

/// A symbol that a file defines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defined {
    pub(super) svma: Svma,
    pub(super) bytes: u64,
}

/// The symbols with these names that other objects see, where the file defines them; `None` if it has none of
/// them.
pub(super) fn exported<const N: usize>(bytes: &[u8], names: [&str; N]) -> Option<[Option<Defined>; N]> {
    let bytes = Untrusted::mapped(bytes);
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let sections = header.sections(ENDIAN, bytes).ok()?;
    [elf::SHT_DYNSYM, elf::SHT_SYMTAB].into_iter().find_map(|kind| {
        let table = sections.symbols(ENDIAN, bytes, kind).ok()?;
        let found = named(names, table.symbols(), table.strings());
        found.iter().any(Option::is_some).then_some(found)
    })
}

fn named<'a, const N: usize>(
    names: [&str; N],
    symbols: &[Sym64<LittleEndian>],
    strings: StringTable<'a, Untrusted<&'a [u8]>>,
) -> [Option<Defined>; N] {
    let mut found = [None; N];
    for symbol in symbols.iter().take(MAX_SYMBOLS) {
        let is_exported = [elf::STB_GLOBAL, elf::STB_WEAK].contains(&symbol.st_bind());
        if !is_exported || symbol.st_shndx(ENDIAN) == elf::SHN_UNDEF {
            continue;
        }
        let Ok(name) = symbol.name(ENDIAN, strings) else {
            continue;
        };
        if let Some(at) = names.iter().position(|wanted| wanted.as_bytes() == name) {
            found[at].get_or_insert(Defined {
                svma: Svma::new(symbol.st_value(ENDIAN)),
                bytes: symbol.st_size(ENDIAN),
            });
        }
    }
    found
}

/// Bytes that are loaded at an address from the file.
pub(super) fn bytes_at<'a>(elf: &'a [u8], view: &ElfView<'_>, at: Svma, bytes: u64) -> Option<&'a [u8]> {
    let last = view.offset_of(at.checked_add(bytes.checked_sub(1)?)?)?;
    let first = view.offset_of(at)?;
    let is_one_piece = FileOffset::wrapping_add(first, bytes - 1) == last;
    let found = elf.read_bytes_at(first.get(), bytes);
    found.ok().filter(|_| is_one_piece)
}
