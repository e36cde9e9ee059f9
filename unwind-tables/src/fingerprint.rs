//! What tells an object in a process's memory from every other: two words that are loaded with it.
//!
//! The build-id, where there is one. Without it there is no such thing, only what makes a mistake unlikely: where
//! the section headers stand in the file, and a word from the middle of the CFI. Words that the program could
//! change are never taken.

use crate::addr::{FileOffset, Svma};
use crate::elf::ElfView;
use crate::mapping::CHECKS;

/// Words of an object, and where they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Address and word.
    pub words: [(Svma, u64); CHECKS],
    /// No other object has the same.
    pub unique: bool,
}

/// Where an ELF header says where the section headers are.
const SECTION_HEADERS_AT: u64 = 40;
const WORD_BYTES: u64 = 8;

/// The fingerprint of an object; `None` when nothing constant of it is loaded.
pub fn fingerprint(elf: &ElfView<'_>) -> Option<Fingerprint> {
    by_build_id(elf).or_else(|| by_contents(elf))
}

/// The first and the last 8 bytes of the build-id, which is a digest of at least as many.
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
