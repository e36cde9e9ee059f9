//! Spans (`Span`): consecutive pages of one large block, of blocks of one class, or free.
//!
//! A record has the number of its first page, and the map leads from the first and from the last page to the
//! record. The map's words for other pages of large and of free spans are stale.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::End;
use super::super::heads::Row;
use super::super::records;
use super::map::{Map, Runs};
use super::statics::{CENTRAL, Sizes, Statics};
use crate::Memory;

/// Words of a record: number of the first page, number of pages, two links, the first free block, and bits.
pub(super) const WORDS: usize = 6;
const BYTES: u64 = 8 * WORDS as u64;
/// Bits: the number of blocks that are not free, the class, and where the span is: in use, free, or free and
/// given back to the kernel.
const USED: u64 = 0xffff;
const CLASS_SHIFT: u64 = 16;
const PLACE_SHIFT: u64 = 24;
const IN_USE: u64 = 0;
const FREE: u64 = 1;
const RETURNED: u64 = 2;

/// Words of a central list: links of its heads of lists of spans.
const CENTRAL_LINKS: [usize; 2] = [4, 10];
/// Maximum distance in bytes of two records between which there are only records: what is taken at once for
/// these.
const RECORDS: u64 = 128 << 10;
/// Maximum number of pages of a span: an address space.
const MAX_PAGES: u64 = 1 << 36;

/// A record as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub start: u64,
    pub pages: u64,
    /// Address of the first free block.
    pub first: u64,
    bits: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One block.
    Large,
    /// Blocks of one class.
    Blocks { class: usize, bytes: u64 },
    /// Free pages, of which some may hold no memory.
    Free,
    /// Free pages without memory.
    Returned,
}

/// A span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub start: u64,
    pub end: u64,
    pub kind: Kind,
    /// Address of the record.
    pub at: u64,
    pub record: Record,
}

/// All spans, ascending, apart from each other.
#[derive(Debug, Default)]
pub(super) struct Spans {
    all: Vec<Span>,
    /// Number of records that contradict themselves, or others, or that change.
    malformed: u64,
}

impl Record {
    pub(super) fn at(memory: &dyn Memory, at: u64) -> Option<Self> {
        let mut words = [0; WORDS];
        (at.is_multiple_of(8) && memory.read(Avma::new(at), &mut words)).then(|| Self::new(&words))
    }

    pub(super) fn new(&[start, pages, _, _, first, bits]: &[u64; WORDS]) -> Self {
        let bits = bits & 0xffff_ffff;
        Self {
            start,
            pages,
            first,
            bits,
        }
    }

    pub(super) fn class(&self) -> usize {
        usize::try_from(self.bits >> CLASS_SHIFT & 0xff).unwrap_or_default()
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.bits >> PLACE_SHIFT & 3 == IN_USE
    }

    /// Number of blocks that are in use or in caches.
    pub(super) fn used(&self) -> u64 {
        self.bits & USED
    }

    /// Returns the span, unless the record contradicts itself.
    fn span(self, at: u64, page_bits: u32, sizes: &Sizes) -> Option<Span> {
        let start = self.start.checked_mul(1 << page_bits)?;
        let pages = Some(self.pages).filter(|pages| (1..=MAX_PAGES).contains(pages))?;
        let end = start
            .checked_add(pages << page_bits)
            .filter(|end| *end <= 1 << 48)?;
        let class = self.class();
        let kind = match self.bits >> PLACE_SHIFT & 3 {
            IN_USE if class == 0 => Kind::Large,
            IN_USE => {
                let (bytes, pages) = sizes.class(class)?;
                let is_right = pages == self.pages && self.used() <= (end - start) / bytes;
                is_right.then_some(Kind::Blocks { class, bytes })?
            }
            FREE if class == 0 => Kind::Free,
            RETURNED if class == 0 => Kind::Returned,
            _ => return None,
        };
        Some(Span {
            start,
            end,
            kind,
            at,
            record: self,
        })
    }
}

impl Span {
    /// Number of its blocks.
    pub(super) fn count(&self) -> u64 {
        match self.kind {
            Kind::Large => 1,
            Kind::Blocks { bytes, .. } => (self.end - self.start) / bytes,
            Kind::Free | Kind::Returned => 0,
        }
    }

    /// Blocks of a span of several; `None` of another.
    pub(super) fn row(&self) -> Option<Row> {
        let Kind::Blocks { bytes, .. } = self.kind else {
            return None;
        };
        Some(Row {
            start: self.start,
            bytes,
            count: self.count(),
        })
    }

    /// Returns true if it is of blocks of one of `classes`.
    pub(super) fn is_of(&self, classes: &BTreeSet<usize>) -> bool {
        matches!(self.kind, Kind::Blocks { class, .. } if classes.contains(&class))
    }

    /// Its blocks, ascending, whether they are free or not.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let bytes = match self.kind {
            Kind::Large => self.end - self.start,
            Kind::Blocks { bytes, .. } => bytes,
            Kind::Free | Kind::Returned => 0,
        };
        let start = self.start;
        (0..self.count()).map(move |number| start + number * bytes..start + (number + 1) * bytes)
    }

    /// Block that contains an address.
    pub(super) fn block_at(&self, address: u64) -> Option<Range<u64>> {
        match self.kind {
            Kind::Large => (self.start..self.end)
                .contains(&address)
                .then_some(self.start..self.end),
            Kind::Blocks { .. } => self.row()?.block_at(address),
            Kind::Free | Kind::Returned => None,
        }
    }

    /// Returns true if one of several blocks begins at an address.
    pub(super) fn has_block_at(&self, address: u64) -> bool {
        self.row().is_some_and(|row| row.number_of(address).is_some())
    }
}

impl Spans {
    /// Reads the records that the map leads to.
    pub(super) fn read(memory: &dyn Memory, map: Map, sizes: &Sizes) -> Self {
        let runs = map.read(memory);
        let mut places: Vec<u64> = runs.iter().map(|run| run.record).collect();
        places.retain(|at| at.is_multiple_of(8));
        places.sort_unstable();
        // Records are a record apart; what is between two is none.
        places.dedup_by(|next, last| *next < last.saturating_add(BYTES));
        let mut found = Self::default();
        records::visit(memory, &places, &mut |at, words| {
            let record = Record::new(words);
            if runs.record_of(record.start) != at {
                // Stale, or of other use by now.
                return;
            }
            match record.span(at, map.page_bits(), sizes) {
                Some(span) if is_mapped(&runs, at, &record) => found.all.push(span),
                Some(_) | None => found.malformed += 1,
            }
        });
        found.leave_apart();
        found
    }

    /// Drops spans that overlap with others: they were split or joined while they were read.
    fn leave_apart(&mut self) {
        self.all.sort_unstable_by_key(|span| span.start);
        let mut overlapping = BTreeSet::new();
        let mut end = (0, 0);
        for span in &self.all {
            if span.start < end.0 {
                overlapping.extend([end.1, span.start]);
            }
            end = end.max((span.end, span.start));
        }
        self.malformed += overlapping.len() as u64;
        self.all.retain(|span| !overlapping.contains(&span.start));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Span> {
        self.all.iter()
    }

    pub(super) fn all(&self) -> &[Span] {
        &self.all
    }

    /// Replaces a span's record by a later one.
    pub(super) fn update(&mut self, index: usize, record: Record) {
        if let Some(span) = self.all.get_mut(index) {
            span.record = record;
        }
    }

    /// Drops the spans at `indices`, which ascend.
    pub(super) fn refuse(&mut self, indices: &[usize]) {
        self.malformed += indices.len() as u64;
        let mut index = 0;
        self.all.retain(|_| {
            index += 1;
            indices.binary_search(&(index - 1)).is_err()
        });
    }

    /// Span that contains an address.
    pub(super) fn of(&self, address: u64) -> Option<&Span> {
        let candidate = self.all.partition_point(|span| span.end <= address);
        self.all.get(candidate).filter(|span| span.start <= address)
    }

    /// Memory of the records, with those between that are of no span now.
    pub(super) fn records(&self) -> Vec<Range<u64>> {
        let mut places: Vec<u64> = self.all.iter().map(|span| span.at).collect();
        places.sort_unstable();
        let mut found: Vec<Range<u64>> = Vec::new();
        for at in places {
            let is_near = |last: &&mut Range<u64>| {
                let distance = at.saturating_sub(last.end);
                let between = self.all.partition_point(|span| span.end <= last.end);
                let is_free = self.all.get(between).is_none_or(|span| span.start >= at);
                distance.is_multiple_of(BYTES) && distance < RECORDS && is_free
            };
            match found.last_mut().filter(is_near) {
                Some(last) => last.end = at.saturating_add(BYTES),
                None => found.push(at..at.saturating_add(BYTES)),
            }
        }
        found
    }

    pub(super) fn malformed(&self) -> u64 {
        self.malformed
    }

    pub(super) fn add_ends(&self, ends: &mut BTreeMap<End, u64>) {
        if self.malformed > 0 {
            ends.insert(End::Malformed, self.malformed);
        }
    }
}

/// Returns true if the map leads from the last page, and from all pages of a span of several blocks, to the
/// record.
fn is_mapped(runs: &Runs, at: u64, record: &Record) -> bool {
    let last = record.start.saturating_add(record.pages.saturating_sub(1));
    let is_whole = record.class() == 0 || (record.start..last).all(|page| runs.record_of(page) == at);
    is_whole && runs.record_of(last) == at
}

impl Statics {
    /// The first spans in the lists of a class, with the class.
    pub(super) fn first_spans(&self, memory: &dyn Memory, class: usize) -> Vec<(usize, u64)> {
        let at = self.central.wrapping_add(CENTRAL * class as u64);
        let own = at..at.saturating_add(CENTRAL);
        let firsts = CENTRAL_LINKS.into_iter().filter_map(|link| {
            let mut word = [0];
            let is_read = memory.read(Avma::new(at.wrapping_add(8 * link as u64)), &mut word);
            (is_read && !own.contains(&word[0])).then_some((class, word[0]))
        });
        firsts.collect()
    }
}
