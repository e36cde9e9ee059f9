//! Knowledge of each page of a process: four bytes a page, in chunks, of which only those with known pages
//! exist.

use std::collections::BTreeMap;
use std::ops::Range;

/// Pages of a chunk: with pages of 4 KiB, as many as a huge page has.
pub(super) const CHUNK_PAGES: u64 = ENTRIES as u64;
const ENTRIES: usize = 512;

/// One page, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// Unknown page: no fault of it was seen.
    pub(super) const NONE: Self = Self(0);
    /// A page that belongs to no stack: it is older than the trace, or no fault of it was seen.
    pub(super) const BEFORE: Self = Self(1);
    /// Lowest value of a page that a stack has touched: the stack's index plus this.
    const FIRST_STACK: u32 = 2;
    /// Given up by `MADV_FREE`: the kernel discards it once it needs memory, and the next fault counts anew.
    const DISCARDED: u32 = 1 << 31;
    /// Found resident since it was touched.
    const SEEN: u32 = 1 << 30;
    /// Not in the totals yet: a page of a file, which becomes the process's own only when it is written.
    const UNCOUNTED: u32 = 1 << 29;
    /// Not found resident although it was touched: perhaps the kernel had not handled the fault yet.
    const MISSED: u32 = 1 << 28;
    const FLAGS: u32 = Self::DISCARDED | Self::SEEN | Self::UNCOUNTED | Self::MISSED;

    pub(super) fn touched(stack: u32, is_counted: bool) -> Self {
        let number = stack.saturating_add(Self::FIRST_STACK) & !Self::FLAGS;
        Self(number | if is_counted { 0 } else { Self::UNCOUNTED })
    }

    /// The stack that it belongs to.
    pub(super) fn stack(self) -> Option<u32> {
        (self.0 & !Self::FLAGS).checked_sub(Self::FIRST_STACK)
    }

    /// Stack whose totals include it.
    pub(super) fn counted(self) -> Option<u32> {
        self.stack().filter(|_| self.0 & Self::UNCOUNTED == 0)
    }

    pub(super) fn is_seen(self) -> bool {
        self.0 & Self::SEEN != 0
    }

    pub(super) fn is_discarded(self) -> bool {
        self.0 & Self::DISCARDED != 0
    }

    /// Marks it as found resident, and as the process's own: it counts.
    pub(super) fn seen(self) -> Self {
        Self((self.0 | Self::SEEN) & !Self::UNCOUNTED & !Self::MISSED)
    }

    pub(super) fn is_missed(self) -> bool {
        self.0 & Self::MISSED != 0
    }

    pub(super) fn missed(self) -> Self {
        Self(self.0 | Self::MISSED)
    }

    pub(super) fn discarded(self) -> Self {
        Self(self.0 | Self::DISCARDED)
    }
}

/// Entries of one chunk.
pub(super) type Entries = [Entry; ENTRIES];

#[derive(Clone, Debug)]
struct Chunk {
    /// Number of entries that are not [`Entry::NONE`]; a chunk without any is removed.
    known: u32,
    entries: Entries,
}

/// Entries by page number.
#[derive(Clone, Debug, Default)]
pub(super) struct PageTable {
    chunks: BTreeMap<u64, Box<Chunk>>,
}

impl PageTable {
    /// Number of chunks that exist.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    pub(super) fn get(&self, page: u64) -> Entry {
        let chunk = self.chunks.get(&(page / CHUNK_PAGES));
        chunk.map_or(Entry::NONE, |chunk| chunk.entries[index(page)])
    }

    pub(super) fn set(&mut self, page: u64, entry: Entry) {
        let number = page / CHUNK_PAGES;
        if entry == Entry::NONE && !self.chunks.contains_key(&number) {
            return;
        }
        let chunk = self.chunks.entry(number).or_insert_with(|| {
            Box::new(Chunk {
                known: 0,
                entries: [Entry::NONE; ENTRIES],
            })
        });
        let was = std::mem::replace(&mut chunk.entries[index(page)], entry);
        chunk.known += u32::from(entry != Entry::NONE);
        chunk.known -= u32::from(was != Entry::NONE);
        if chunk.known == 0 {
            self.chunks.remove(&number);
        }
    }

    /// Entries of the chunk that `page` is the first of.
    pub(super) fn chunk(&self, page: u64) -> Option<&Entries> {
        let chunk = self.chunks.get(&(page / CHUNK_PAGES))?;
        Some(&chunk.entries)
    }

    /// Known pages in `pages`, ascending.
    pub(super) fn within(&self, pages: &Range<u64>) -> impl Iterator<Item = (u64, Entry)> + use<'_> {
        let pages = pages.start..pages.end.max(pages.start);
        let chunks = pages.start / CHUNK_PAGES..pages.end.div_ceil(CHUNK_PAGES);
        self.chunks.range(chunks).flat_map(move |(&number, chunk)| {
            let first = number * CHUNK_PAGES;
            let all = (first..).zip(chunk.entries);
            let pages = pages.clone();
            all.filter(move |(page, entry)| pages.contains(page) && *entry != Entry::NONE)
        })
    }

    /// Takes out all known pages in `pages`.
    pub(super) fn take(&mut self, pages: &Range<u64>) -> Vec<(u64, Entry)> {
        let taken: Vec<_> = self.within(pages).collect();
        for &(page, _) in &taken {
            self.set(page, Entry::NONE);
        }
        taken
    }

    /// All known pages, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Entry)> + '_ {
        self.within(&(0..u64::MAX - CHUNK_PAGES))
    }

    /// First pages of all chunks, ascending.
    pub(super) fn firsts(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.keys().map(|number| number * CHUNK_PAGES)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "it is below CHUNK_PAGES")]
fn index(page: u64) -> usize {
    (page % CHUNK_PAGES) as usize
}
