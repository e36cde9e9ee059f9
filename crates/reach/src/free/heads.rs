//! First words of blocks, in which allocators link the free ones.

use std::ops::Range;

use super::records::range;
use crate::Memory;

/// Size in bytes of blocks from which on only their first words are read.
const APART: u64 = 512;

/// Consecutive blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub start: u64,
    /// Bytes of a block, not 0.
    pub bytes: u64,
    /// Number of blocks. All are below 2^57.
    pub count: u64,
}

impl Row {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes * self.count
    }

    /// Blocks, ascending.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let Self { start, bytes, count } = *self;
        (0..count).map(move |number| start + number * bytes..start + (number + 1) * bytes)
    }

    /// Number of the block that begins at an address.
    pub(super) fn number_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        let number = offset / self.bytes;
        (offset.is_multiple_of(self.bytes) && number < self.count).then_some(number)
    }

    /// Block that contains an address.
    pub(super) fn block_at(&self, address: u64) -> Option<Range<u64>> {
        let number = address.checked_sub(self.start)? / self.bytes;
        let start = self.start + number * self.bytes;
        (number < self.count).then_some(start..start + self.bytes)
    }
}

/// First words of all blocks of some rows.
pub(super) struct Heads {
    rows: Vec<Row>,
    /// For each row, the index in `words` of its first block's.
    first: Vec<usize>,
    words: Vec<u64>,
}

impl Heads {
    /// Reads the words of rows, which ascend, and do not overlap.
    pub(super) fn read(memory: &dyn Memory, rows: Vec<Row>) -> Self {
        let mut first = Vec::with_capacity(rows.len());
        let mut count = 0;
        let mut ranges = Vec::new();
        for row in &rows {
            first.push(count);
            count += usize::try_from(row.count).unwrap_or_default();
            if row.bytes >= APART {
                let heads = row.blocks().map(|block| block.start..block.start + 8);
                ranges.extend(heads.map(|head| range(&head)));
            } else {
                ranges.push(range(&(row.start..row.end())));
            }
        }
        let mut heads = Self {
            rows,
            first,
            words: vec![0; count],
        };
        memory.visit(&ranges, &mut |at, words| heads.see(at.get(), words));
        heads
    }

    /// Keeps those of some words that are the first of a block.
    fn see(&mut self, at: u64, words: &[u64]) {
        let number = self.rows.partition_point(|row| row.end() <= at);
        let (Some(row), Some(first)) = (self.rows.get(number), self.first.get(number)) else {
            return;
        };
        let place = at.saturating_sub(row.start).div_ceil(row.bytes);
        for (place, block) in (place..row.count).map(|place| (place, row.start + place * row.bytes)) {
            let index = usize::try_from((block - at) / 8).unwrap_or(usize::MAX);
            let Some(word) = words.get(index) else {
                break;
            };
            let place = usize::try_from(place).unwrap_or(usize::MAX);
            if let Some(kept) = self.words.get_mut(first.saturating_add(place)) {
                *kept = *word;
            }
        }
    }

    /// First word of the block of a row that begins at an address; `None` if none does.
    pub(super) fn of(&self, row: usize, address: u64) -> Option<u64> {
        let place = self.rows.get(row)?.number_of(address)?;
        let place = usize::try_from(place).ok()?;
        self.words.get(self.first.get(row)? + place).copied()
    }
}
