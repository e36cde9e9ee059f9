//! Anchors in the data of the object that contains tcmalloc: the table of size classes (`SizeMap`), the
//! central lists (`CentralFreeList`), and the words that may lead to the page map and to threads' caches.
//!
//! The table begins with the sizes 8 and 16, and has one number of classes four times: in sizes, in pages, in
//! numbers of objects and as a number. Central lists are in an array by class; each has its class, and the
//! first one's heads of circular lists lead to themselves.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::records::range;
use crate::Memory;

/// Capacity of all arrays by size class, since 2.8.
pub(super) const CLASSES: usize = 128;
/// Sizes of classes 1 and 2, as one word.
const FIRST_SIZES: u64 = 8 | 16 << 32;
/// Size of the last class.
const LARGEST: u32 = 256 << 10;
/// Maximum number of pages of a span of blocks.
const MAX_PAGES: u64 = 1 << 16;
/// Bytes from the first sizes back to the start of the two tables of 32 bits, and from these to the end of
/// the table of pages. The sizes begin in the middle of a word.
const TO_TABLES: u64 = 4 + 4 + 4 * CLASSES as u64;
const TABLE_WORDS: usize = 1 + 4 * CLASSES / 8 + 4 * CLASSES / 8 + CLASSES + 2;

/// Bytes of a central list, and words of it that are read.
pub(super) const CENTRAL: u64 = 1216;
const CENTRAL_WORDS: usize = 146;
/// Words: the class; the heads of the lists of spans without and with free blocks, whose second and third
/// words are links; and chains of blocks with, in the lower half of the word behind them, their number.
const CLASS: usize = 1;
const HEADS: [usize; 2] = [2, 8];
const LINK: usize = 2;
const CHAINS: usize = 16;
const MAX_CHAINS: usize = 64;
const USED_CHAINS: usize = CHAINS + 2 * MAX_CHAINS;

/// Maximum numbers of places that are tried as a table or as the first central list, and of other words.
const MAX_TRIED: usize = 1 << 12;
const MAX_WORDS: usize = 1 << 18;

/// Size classes, by number; class 0 is of large blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes of a block.
    bytes: Vec<u32>,
    /// Pages of a span.
    pages: Vec<u64>,
    /// Number of blocks in a chain.
    chain: Vec<u32>,
}

/// Anchors in one object.
#[derive(Debug)]
pub(super) struct Statics {
    pub sizes: Sizes,
    /// Address of the first central list.
    pub central: u64,
    /// Words that lead to anonymous memory, with their addresses.
    pub words: Vec<(u64, u64)>,
}

/// Findings of one pass over an object's data.
#[derive(Default)]
struct Candidates {
    tables: Vec<u64>,
    centrals: Vec<u64>,
    words: Vec<(u64, u64)>,
}

impl Sizes {
    /// Number of classes, with class 0.
    pub(super) fn count(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the blocks of a class, and pages of its spans; `None` for a class that has no blocks.
    pub(super) fn class(&self, class: usize) -> Option<(u64, u64)> {
        let bytes = u64::from(*self.bytes.get(class)?);
        (bytes > 0).then_some((bytes, *self.pages.get(class)?))
    }

    /// Number of blocks in a chain.
    pub(super) fn chain(&self, class: usize) -> u64 {
        self.chain.get(class).map_or(0, |chain| u64::from(*chain))
    }

    /// Returns true if the pages of all classes hold their blocks with little left, as they do by
    /// construction.
    pub(super) fn agrees_with(&self, page: u64) -> bool {
        (1..self.count()).all(|class| {
            let Some((bytes, pages)) = self.class(class) else {
                return false;
            };
            let all = pages.saturating_mul(page);
            all >= bytes && all % bytes <= all / 8
        })
    }

    /// Reads the table whose first sizes are at `at`.
    fn read(memory: &dyn Memory, at: u64) -> Option<Self> {
        let mut words = [0; TABLE_WORDS];
        let start = at.checked_sub(TO_TABLES)?;
        if !memory.read(Avma::new(start), &mut words) {
            return None;
        }
        // The tables of 32 bits begin in the upper half of the first word.
        let half = |index: usize| {
            let word = words.get(index / 2).copied().unwrap_or_default();
            u32::try_from(word >> (32 * (index % 2)) & 0xffff_ffff).unwrap_or_default()
        };
        let halves = |first: usize| (first..first + CLASSES).map(half).collect::<Vec<_>>();
        let (mut chain, mut bytes) = (halves(1), halves(1 + CLASSES));
        let first = 1 + CLASSES;
        let mut pages = words.get(first..first + CLASSES)?.to_vec();
        let count = 1 + bytes.iter().skip(1).take_while(|bytes| **bytes > 0).count();
        // Since 2.11, a word between pages and the number has the minimum number of pages of a span.
        let behind = words.get(first + CLASSES..)?;
        let has_count = behind.contains(&(count as u64));
        let is_empty = |from: usize| {
            let is_zero = |half: &u32| *half == 0;
            bytes.iter().skip(from).all(is_zero)
                && chain.iter().skip(from).all(is_zero)
                && pages.iter().skip(from).all(|pages| *pages == 0)
        };
        let is_first_empty = bytes.first() == Some(&0) && pages.first() == Some(&0);
        if !has_count || !is_empty(count) || !is_first_empty {
            return None;
        }
        bytes.truncate(count);
        pages.truncate(count);
        chain.truncate(count);
        let is_right = bytes.is_sorted_by(|last, next| last < next)
            && bytes.last() == Some(&LARGEST)
            && pages.iter().skip(1).all(|pages| (1..=MAX_PAGES).contains(pages))
            && chain.iter().skip(1).all(|chain| *chain > 0);
        is_right.then_some(Self { bytes, pages, chain })
    }
}

impl Candidates {
    fn see(&mut self, at: u64, words: &[u64], is_outside: &dyn Fn(u64) -> bool) {
        for (&word, at) in words.iter().zip((at..).step_by(8)) {
            let head = at.wrapping_sub(8 * LINK as u64);
            if word == FIRST_SIZES && self.tables.len() < MAX_TRIED {
                self.tables.push(at);
            } else if word == head && self.centrals.len() < MAX_TRIED {
                self.centrals.push(head.wrapping_sub(8 * HEADS[0] as u64));
            } else if word.is_multiple_of(8) && self.words.len() < MAX_WORDS && is_outside(word) {
                self.words.push((at, word));
            }
        }
    }
}

/// Finds the anchors in an object's data. `is_outside` is true for addresses in memory where the allocator
/// can have its records.
pub(super) fn find(
    memory: &dyn Memory,
    data: &Range<u64>,
    is_outside: &dyn Fn(u64) -> bool,
) -> Option<Statics> {
    let mut found = Candidates::default();
    memory.visit(&[range(data)], &mut |at, words| {
        found.see(at.get(), words, is_outside)
    });
    let mut tables = found.tables.into_iter();
    let sizes = tables.find_map(|at| Sizes::read(memory, at))?;
    let mut centrals = found.centrals.into_iter();
    let central = centrals.find(|at| is_central(memory, *at, sizes.count()))?;
    Some(Statics {
        sizes,
        central,
        words: found.words,
    })
}

/// Returns true if there is an array of `count` central lists.
fn is_central(memory: &dyn Memory, start: u64, count: usize) -> bool {
    (0..count).all(|class| {
        let at = start.wrapping_add(CENTRAL * class as u64);
        let Some(words) = central(memory, at) else {
            return false;
        };
        let is_head = |head: &usize| {
            let own = at.wrapping_add(8 * *head as u64);
            let links = words.get(head + LINK..head + LINK + 2).unwrap_or_default();
            let is_link = |link: &u64| *link == own || (class > 0 && *link != 0);
            links.iter().all(is_link) && links.contains(&own) == links.iter().all(|link| *link == own)
        };
        words.get(CLASS) == Some(&(class as u64)) && HEADS.iter().all(is_head)
    })
}

fn central(memory: &dyn Memory, at: u64) -> Option<[u64; CENTRAL_WORDS]> {
    let mut words = [0; CENTRAL_WORDS];
    (at.is_multiple_of(8) && memory.read(Avma::new(at), &mut words)).then_some(words)
}

impl Statics {
    /// Memory of the central lists.
    pub(super) fn central_memory(&self) -> Range<u64> {
        let bytes = CENTRAL * CLASSES as u64;
        self.central..self.central.saturating_add(bytes)
    }

    /// First blocks of the chains that a central list keeps for threads.
    pub(super) fn chains(&self, memory: &dyn Memory, class: usize) -> Vec<u64> {
        let at = self.central.wrapping_add(CENTRAL * class as u64);
        let Some(words) = central(memory, at) else {
            return Vec::new();
        };
        let used = words.get(USED_CHAINS).map_or(0, |word| word & 0xffff_ffff);
        let used = usize::try_from(used).unwrap_or(MAX_CHAINS).min(MAX_CHAINS);
        let chains = words.get(CHAINS..USED_CHAINS).unwrap_or_default();
        let heads = chains.chunks_exact(2).filter_map(|chain| chain.first());
        heads.take(used).copied().collect()
    }
}
