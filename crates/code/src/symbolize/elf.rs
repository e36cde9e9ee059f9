//! ELF files whose contents are not trusted.

use std::fs::File;

use object::ReadRef;
use object::read::ReadCache;
use object::read::elf::ElfFile64;

use leak_report::model::Gap;
use memleak_base::untrusted::{MAX_SECTIONS, Untrusted};

/// An untrusted ELF file.
pub(super) type Elf<'a, R> = ElfFile64<'a, object::LittleEndian, Untrusted<R>>;

/// Parses the headers of a file in memory.
pub(super) fn parse_mapped(bytes: &[u8]) -> Option<Elf<'_, &[u8]>> {
    parse(Untrusted::mapped(bytes))
}

/// Parses the headers of a file that is copied as it is read.
pub(super) fn parse_copied<'a, 'f>(
    cache: &'a ReadCache<&'f File>,
) -> Option<Elf<'a, &'a ReadCache<&'f File>>> {
    parse(Untrusted::copied(cache))
}

/// Parses the headers. Rejects files with too many sections, as each lookup of a section searches all of
/// them.
fn parse<'a, R: ReadRef<'a>>(bytes: Untrusted<R>) -> Option<Elf<'a, R>> {
    let elf = ElfFile64::parse(bytes).ok()?;
    (elf.elf_section_table().len() <= MAX_SECTIONS).then_some(elf)
}

/// True for a file that is rejected since it has too many sections.
pub(super) fn has_too_many_sections(bytes: &[u8]) -> bool {
    let bytes = Untrusted::mapped(bytes);
    let elf: Option<ElfFile64<'_, object::LittleEndian, _>> = ElfFile64::parse(bytes).ok();
    elf.is_some_and(|elf| elf.elf_section_table().len() > MAX_SECTIONS)
}

/// Converts gimli's error to the reason for a missing name.
pub(super) fn malformed(_: gimli::Error) -> Gap {
    Gap::Malformed
}
