//! Copies of code that a process has generated, for walks that are finished after its end.
//!
//! Only the start of each mapping is copied. HotSpot's interpreter is there, and does not change. Other code
//! may change after a walk was deferred: a walk that is finished from a copy may see older code than it began
//! with, just as one that is finished late from the process's memory may see newer code.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::mappings::Mappings;
use super::process_memory::ProcessMemory;

/// Maximum number of bytes copied from each mapping. HotSpot's interpreter and its stubs have 200 KiB.
const MAX_BYTES: u64 = 512 << 10;
/// Maximum number of mappings copied. A JVM has three.
const MAX_MAPPINGS: usize = 8;
/// Bytes per read.
const PAGE: usize = 4096;

/// Copies of generated code.
#[derive(Debug, Default)]
pub struct GeneratedCode {
    pieces: Vec<(Avma, Vec<u8>)>,
}

impl GeneratedCode {
    /// Reads the generated code of process `pid`; nothing if it has ended.
    pub fn read(pid: u32, mappings: &Mappings) -> Self {
        let entries = mappings.entries().iter();
        let generated = entries.filter(|entry| entry.code.is_generated());
        let mut ranges = generated.map(|entry| entry.range.clone()).peekable();
        if ranges.peek().is_none() {
            return Self::default();
        }
        ProcessMemory::open(pid).map_or_else(|_| Self::default(), |memory| Self::of(&memory, ranges))
    }

    /// Reads the start of each of these ranges.
    pub(super) fn of(memory: &ProcessMemory, ranges: impl Iterator<Item = Range<Avma>>) -> Self {
        let pieces = ranges.take(MAX_MAPPINGS).map(|range| {
            let bytes = range.end.offset_from(range.start).min(MAX_BYTES);
            (range.start, read_start(memory, range.start, bytes))
        });
        Self {
            pieces: pieces.filter(|(_, bytes)| !bytes.is_empty()).collect(),
        }
    }

    /// The 8 bytes at an address, if they were read.
    pub fn word(&self, at: Avma) -> Option<u64> {
        self.pieces.iter().find_map(|(start, bytes)| {
            let offset = at.get().checked_sub(start.get())?;
            let bytes = bytes.get(usize::try_from(offset).ok()?..)?;
            Some(u64::from_ne_bytes(*bytes.first_chunk()?))
        })
    }

    /// True if nothing was read.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
}

/// Reads whole pages, at most `bytes` bytes, up to the first page that cannot be read.
fn read_start(memory: &ProcessMemory, start: Avma, bytes: u64) -> Vec<u8> {
    let mut read = Vec::new();
    let mut page = [0; PAGE];
    for offset in (0..bytes - bytes % PAGE as u64).step_by(PAGE) {
        if memory
            .read_exact_at(&mut page, start.wrapping_add(offset))
            .is_err()
        {
            break;
        }
        read.extend_from_slice(&page);
    }
    read
}

#[cfg(test)]
mod tests {
    use super::super::mappings::{CodeMapping, MappedCode};
    use super::*;

    /// A copy has the words of the code and none beyond; the copy of a process that has ended is empty.
    #[test]
    fn words_of_a_copy() {
        let page = memleak_base::pages::bytes();
        let code: Vec<u64> = (0..3 * page / 8).collect();
        let start = (code.as_ptr().addr() as u64).next_multiple_of(page);
        let first = (start - code.as_ptr().addr() as u64) / 8;
        let range = Avma::new(start)..Avma::new(start + page);
        let mappings: Mappings = [CodeMapping {
            range,
            code: MappedCode::MEMORY,
        }]
        .into_iter()
        .collect();
        let copy = GeneratedCode::read(std::process::id(), &mappings);
        assert_eq!(copy.word(Avma::new(start + 16)), Some(first + 2));
        assert_eq!(copy.word(Avma::new(start + page - 8)), Some(first + page / 8 - 1));
        assert_eq!(copy.word(Avma::new(start + page - 4)), None);
        assert_eq!(copy.word(Avma::new(start - 8)), None);
        assert!(GeneratedCode::read(u32::MAX / 2, &mappings).is_empty());
    }
}
