//! Map from pages to the records of their spans (`TCMalloc_PageMap2`): a root of half of the bits of a page's
//! number, in an object's data, and leaves of the other half.
//!
//! The root is found by what it leads to: a word of the data leads to a leaf, which leads to the record of a
//! span in a central list, at the place of that span's first page. Behind the root are the heads of the lists
//! of free spans, by their number of pages, which lead to themselves or to such spans.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::records::range;
use super::spans::{Record, WORDS};
use super::statics::Statics;
use crate::Memory;

/// Bits of an address.
const ADDRESS_BITS: u32 = 48;
/// Bits of an address in a page: 8 KiB, unless tcmalloc is configured otherwise.
const PAGE_BITS: [u32; 6] = [13, 12, 15, 14, 16, 18];
/// Alignment of leaves.
const LEAF: u64 = 16;
/// Bytes from the root's end to the lists of free spans: the address of a function, and two sets of large
/// spans (`std::set`).
const TO_LISTS: u64 = 8 + 2 * 48;
/// Bits of the size in bytes of the largest spans in lists.
const LISTS_BITS: u32 = 20;
/// Words of a pair of heads: of spans that hold memory, and of those whose memory was given back.
const PAIR: usize = 2 * WORDS;
/// Words of the links in a head.
const LINKS: [usize; 2] = [2, 3];

/// Maximum number of runs of pages that are kept: one for each page of a heap of 128 GiB.
const MAX_RUNS: usize = 1 << 24;
/// Maximum number of spans of central lists that are tried.
const MAX_PROBES: usize = 16;

/// Root of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Map {
    root: u64,
    page_bits: u32,
}

/// Consecutive pages with the same word in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Run {
    pub first: u64,
    /// Page behind the last one.
    pub end: u64,
    /// Address of the record.
    pub record: u64,
}

/// Contents of the map, by page.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Map {
    pub(super) fn page_bits(self) -> u32 {
        self.page_bits
    }

    fn leaf_bits(self) -> u32 {
        (ADDRESS_BITS - self.page_bits).div_ceil(2)
    }

    fn root_bytes(self) -> u64 {
        8 << (ADDRESS_BITS - self.page_bits - self.leaf_bits())
    }

    fn leaf_bytes(self) -> u64 {
        8 << self.leaf_bits()
    }

    /// Number of lists of free spans.
    fn lists(self) -> u64 {
        1 << (LISTS_BITS - self.page_bits)
    }

    /// Memory of the root and of the lists behind it.
    pub(super) fn memory(self) -> Range<u64> {
        let lists = TO_LISTS + self.lists() * 8 * PAIR as u64;
        let bytes = self.root_bytes() + lists;
        self.root..self.root.saturating_add(bytes)
    }

    /// Finds the map that leads to spans of central lists.
    pub(super) fn find(memory: &dyn Memory, data: &Range<u64>, statics: &Statics) -> Option<Self> {
        let probes = statics.spans(memory, MAX_PROBES);
        let page_bits = PAGE_BITS.into_iter();
        let mut page_bits = page_bits.filter(|bits| statics.sizes.agrees_with(1 << bits));
        page_bits.find_map(|page_bits| {
            let form = Self { root: 0, page_bits };
            let mut probes = probes.iter();
            probes.find_map(|(at, record)| form.leading_to(memory, data, statics, (*at, record.start)))
        })
    }

    /// Finds the map of this form that leads from a page to a record.
    fn leading_to(
        self,
        memory: &dyn Memory,
        data: &Range<u64>,
        statics: &Statics,
        (record, page): (u64, u64),
    ) -> Option<Self> {
        if page >> (ADDRESS_BITS - self.page_bits) != 0 {
            return None;
        }
        let offset = 8 * (page & ((1 << self.leaf_bits()) - 1));
        let leads = |leaf: u64| {
            let mut word = [0];
            let at = leaf.checked_add(offset);
            let is_read = at.is_some_and(|at| memory.read(Avma::new(at), &mut word));
            is_read && word == [record]
        };
        let leaves = statics.words.iter().filter(|(_, leaf)| leaf.is_multiple_of(LEAF));
        let mut roots = leaves.filter_map(|(at, leaf)| {
            let root = at.checked_sub(8 * (page >> self.leaf_bits()))?;
            let map = Self { root, ..self };
            let Range { start, end } = map.memory();
            (data.start <= start && end <= data.end && leads(*leaf)).then_some(map)
        });
        roots.find(|map| map.has_lists(memory))
    }

    /// Returns true if the heads of lists of free spans are behind the root.
    fn has_lists(self, memory: &dyn Memory) -> bool {
        let first = self.root + self.root_bytes() + TO_LISTS;
        let mut heads = (0..self.lists()).map(|pages| first + pages * 8 * PAIR as u64);
        heads.all(|at| {
            let mut words = [0; PAIR];
            let is_read = memory.read(Avma::new(at), &mut words);
            let is_right = |(head, at): (&[u64], u64)| {
                let links = LINKS.map(|link| head.get(link).copied().unwrap_or_default());
                let is_empty = links == [at; 2];
                is_empty || links.iter().all(|link| *link != 0 && *link != at)
            };
            let heads = words.chunks_exact(WORDS);
            is_read && heads.zip((at..).step_by(8 * WORDS)).all(is_right)
        })
    }

    /// Reads the map.
    pub(super) fn read(self, memory: &dyn Memory) -> Runs {
        let mut leaves = Vec::new();
        let root = self.root..self.root + self.root_bytes();
        memory.visit(&[range(&root)], &mut |at, words| {
            let first = at.get().saturating_sub(root.start) / 8;
            let all = words.iter().zip(first..);
            leaves.extend(
                all.filter(|(leaf, _)| **leaf != 0)
                    .map(|(leaf, index)| (*leaf, index)),
            );
        });
        // Each leaf is read once, and none overlaps another: so no more is read than there is.
        leaves.retain(|(leaf, _)| leaf.is_multiple_of(LEAF));
        leaves.sort_unstable();
        leaves.dedup_by(|next, last| next.0 < last.0.saturating_add(self.leaf_bytes()));
        let mut runs: Vec<Run> = Vec::new();
        for (leaf, index) in leaves {
            let leaf = leaf..leaf.saturating_add(self.leaf_bytes());
            memory.visit(&[range(&leaf)], &mut |at, words| {
                let first = (index << self.leaf_bits()) + at.get().saturating_sub(leaf.start) / 8;
                for (&record, page) in words.iter().zip(first..) {
                    if record == 0 {
                        continue;
                    }
                    let last = runs.last_mut();
                    let last = last.filter(|last| last.record == record && last.end == page);
                    if let Some(last) = last {
                        last.end += 1;
                    } else if runs.len() < MAX_RUNS {
                        runs.push(Run {
                            first: page,
                            end: page + 1,
                            record,
                        });
                    }
                }
            });
        }
        runs.sort_unstable();
        Runs(runs)
    }
}

impl Runs {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.0.iter()
    }

    /// Word of the map for a page; 0 if it has none.
    pub(super) fn record_of(&self, page: u64) -> u64 {
        let run = self.0.partition_point(|run| run.end <= page);
        let run = self.0.get(run).filter(|run| run.first <= page);
        run.map_or(0, |run| run.record)
    }
}

impl Statics {
    /// Records of spans in central lists, with their addresses: up to `most` of them.
    fn spans(&self, memory: &dyn Memory, most: usize) -> Vec<(u64, Record)> {
        let classes = 1..self.sizes.count();
        let firsts = classes.flat_map(|class| self.first_spans(memory, class));
        let spans = firsts.filter_map(|(class, at)| {
            let record = Record::at(memory, at)?;
            (record.class() == class && record.is_in_use() && record.start > 0).then_some((at, record))
        });
        spans.take(most).collect()
    }
}
