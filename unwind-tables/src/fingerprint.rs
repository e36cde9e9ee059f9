//! Fingerprint of an object in a process's memory: two words that are loaded with it.
//!
//! From the build-id, if the object has one, which identifies it. Otherwise the offset of the section headers
//! and a word from the middle of the CFI, which only make confusion unlikely. Words that the program can
//! change are never used.

use crate::addr::{FileOffset, Svma};
use crate::elf::ElfView;
use crate::mapping::CHECKS;

/// Words of an object, and the addresses where they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Addresses and words.
    pub words: [(Svma, u64); CHECKS],
    /// True if no other object has the same words.
    pub unique: bool,
}

/// Offset of `e_shoff`, the section headers' offset, in an ELF header.
const SECTION_HEADERS_AT: u64 = 40;
const WORD_BYTES: u64 = 8;

/// Returns the fingerprint of an object; `None` if no constant words of it are loaded.
pub fn fingerprint(elf: &ElfView<'_>) -> Option<Fingerprint> {
    by_build_id(elf).or_else(|| by_contents(elf))
}

/// Uses the first and the last 8 bytes of the build-id; `None` if it is shorter.
fn by_build_id(elf: &ElfView<'_>) -> Option<Fingerprint> {
    let range = elf.build_id_range()?;
    let length = range.end.offset_from(range.start);
    let first = elf.svma_of(range.start)?;
    let last = first.wrapping_add(length.checked_sub(WORD_BYTES)?);
    Some(Fingerprint {
        words: [
            (first, elf.constant_word(first)?),
            (last, elf.constant_word(last)?),
        ],
        unique: true,
    })
}

fn by_contents(elf: &ElfView<'_>) -> Option<Fingerprint> {
    let header = elf.svma_of(FileOffset::new(SECTION_HEADERS_AT))?;
    let cfi = elf.eh_frame()?;
    let middle = cfi.svma.wrapping_add(cfi.data.len() as u64 / 2);
    Some(Fingerprint {
        words: [
            (header, elf.constant_word(header)?),
            (middle, elf.constant_word(middle)?),
        ],
        unique: false,
    })
}
