//! Caches of threads (`tcache_t`, `include/jemalloc/internal/cache_bin.h`): a bin for each of the smaller
//! size classes, with a stack of blocks that the thread has freed, or takes next. The stacks of one cache are
//! consecutive, in a block of the allocator's, with a mark before the first and behind the last one. Blocks
//! in a stack look used; pointers that were in a stack before are stale.
//!
//! Caches are in their threads' own data, which is linked in a ring. The data of the object with the root of
//! the tree leads there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::records;
use super::super::records::{PAGE, range};
use super::base;
use super::extents::Extents;
use crate::Memory;

/// Words of a thread's own data that are read: more than there are.
const WINDOW: usize = 512;
/// Words of a bin: the top of its stack, which grows downwards; a counter of requests; and the low 16 bits of
/// the lowest recent top, of the stack's lowest address and of its end.
const BIN: usize = 3;
/// Minimum number of bins of a cache that have room for blocks, and maximum number of words in all of its
/// stacks.
const MIN_BINS: usize = 4;
const MAX_WORDS: u64 = 1 << 19;
/// Marks before the first stack, and behind the last one, in 5.3.0 and later.
const BEFORE: u64 = 0x7a7a_7a7a_7a7a_7a7a;
const BEHIND: [u64; 2] = [0xa7a7_a7a7_a7a7_a7a7, 0x7a7a_7a7a_7a7a_7a7b];

/// Maximum number of words of the data that are tried. With more than `MANY`, words that lead to blocks are
/// dropped first, which takes another reading of the extents.
const MAX_TRIED: usize = 1 << 14;
const MANY: usize = 1 << 11;
const MAX_THREADS: usize = 1 << 16;
/// Maximum number of blocks in caches. Further caches count as unknown.
const MAX_CACHED: u64 = 1 << 24;
/// Maximum number of blocks that are searched for stacks of unknown caches.
const MAX_OTHERS: usize = 1 << 20;

/// A block in a thread's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cached {
    pub address: u64,
    pub class: u64,
}

/// Addresses of the bins of all threads' caches.
#[derive(Debug, Default)]
pub(super) struct Threads(BTreeSet<u64>);

/// All caches at one moment.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Ascending.
    pub cached: Vec<Cached>,
    /// Start and end of the memory of each cache's stacks.
    stacks: BTreeMap<u64, u64>,
}

/// A bin's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bin {
    top: u64,
    lowest: u64,
    end: u64,
}

impl Bin {
    fn read(words: &[u64]) -> Option<Self> {
        let &[top, _, bounds, ..] = words else {
            return None;
        };
        let low = |word: u64| word & 0xffff;
        let end = top.checked_add(low((bounds >> 32).wrapping_sub(top)))?;
        let lowest = end.checked_sub(low((bounds >> 32).wrapping_sub(bounds >> 16)))?;
        let is_right =
            top.is_multiple_of(8) && lowest.is_multiple_of(8) && end.is_multiple_of(8) && lowest <= top;
        is_right.then_some(Self { top, lowest, end })
    }

    fn is_empty(&self) -> bool {
        self.lowest == self.end
    }
}

/// Bins that begin at `words`, if their stacks follow each other from the start of a page on.
fn bins(words: &[u64]) -> Option<Vec<Bin>> {
    let first = Bin::read(words).filter(|first| first.lowest % PAGE == 8 && !first.is_empty())?;
    let mut end = first.lowest;
    let mut bins = Vec::new();
    for words in words.chunks_exact(BIN) {
        match Bin::read(words) {
            Some(bin) if bin.lowest == end => {
                end = bin.end;
                bins.push(bin);
            }
            // Bins of classes that are not cached have an empty stack elsewhere.
            Some(bin) if bin.is_empty() && bin.top != 0 => bins.push(bin),
            Some(_) | None => break,
        }
    }
    while bins.last().is_some_and(Bin::is_empty) {
        bins.pop();
    }
    let filled = bins.iter().filter(|bin| !bin.is_empty()).count();
    (filled >= MIN_BINS && (end - first.lowest) / 8 <= MAX_WORDS).then_some(bins)
}

/// Index of the bins among words of a thread's data, and the bins.
fn find_bins(words: &[u64]) -> Option<(usize, Vec<Bin>)> {
    (0..words.len()).find_map(|index| Some((index, bins(words.get(index..)?)?)))
}

/// Address and words of the memory of all stacks, if the marks are around them.
fn stacks(memory: &dyn Memory, bins: &[Bin]) -> Option<(u64, Vec<u64>)> {
    let start = bins.first()?.lowest.checked_sub(8)?;
    let end = bins.last()?.end.checked_add(8)?;
    let mut words = vec![0; usize::try_from(end.checked_sub(start)? / 8).ok()?];
    let is_read = memory.read(Avma::new(start), &mut words);
    let is_marked = words.first() == Some(&BEFORE) && words.last().is_some_and(|last| BEHIND.contains(last));
    (is_read && is_marked).then_some((start, words))
}

fn word(memory: &dyn Memory, at: u64) -> Option<u64> {
    let mut word = [0];
    (at.is_multiple_of(8) && memory.read(Avma::new(at), &mut word)).then_some(word[0])
}

/// Words from `at` on, up to a page that cannot be read: a thread's data can be the last of its mapping.
fn window(memory: &dyn Memory, at: u64) -> Vec<u64> {
    let mut words = Vec::with_capacity(WINDOW);
    while at.is_multiple_of(8) && words.len() < WINDOW {
        let Some(next) = at.checked_add(8 * words.len() as u64) else {
            break;
        };
        let in_page = usize::try_from((PAGE - next % PAGE) / 8).unwrap_or(WINDOW);
        let mut page = vec![0; in_page.min(WINDOW - words.len())];
        if !memory.read(Avma::new(next), &mut page) {
            break;
        }
        words.append(&mut page);
    }
    words
}

/// Finds the caches of all threads whose data is linked from `data`. `read_extents` reads the extents as they
/// are now.
pub(super) fn find(
    memory: &dyn Memory,
    data: &[Range<u64>],
    base: &[Range<u64>],
    read_extents: &dyn Fn() -> Extents,
) -> Threads {
    let mut found = Threads::default();
    for data in data {
        let (mut candidates, mut seen) = (Vec::new(), BTreeSet::new());
        memory.visit(&[range(data)], &mut |_, words| {
            let is_candidate = |word: &&u64| {
                let is_address = word.is_multiple_of(8) && (PAGE..1 << 57).contains(*word);
                is_address && !base::has(base, **word, 8)
            };
            for word in words.iter().filter(is_candidate) {
                if seen.insert(*word) {
                    candidates.push(*word);
                }
            }
        });
        if candidates.len() > MANY {
            let extents = read_extents();
            candidates.retain(|candidate| extents.of(*candidate).is_none());
        }
        // There is one ring.
        let mut tried = candidates.into_iter().take(MAX_TRIED);
        tried.find(|candidate| found.add_ring(memory, *candidate));
    }
    found
}

impl Threads {
    /// Adds the caches of a ring of threads' data, if `first` is in one. Returns true if it is.
    fn add_ring(&mut self, memory: &dyn Memory, first: u64) -> bool {
        let words = window(memory, first);
        let Some((place, bins)) = find_bins(&words) else {
            return false;
        };
        if stacks(memory, &bins).is_none() {
            return false;
        }
        self.0.insert(first + 8 * place as u64);
        let Some(link) = ring(memory, first, words.get(..place).unwrap_or_default()) else {
            return false;
        };
        let mut next = words.get(link).copied();
        for _ in 0..MAX_THREADS {
            let Some(at) = next.filter(|at| *at != first) else {
                break;
            };
            self.0.insert(at.saturating_add(8 * place as u64));
            next = word(memory, at.saturating_add(8 * link as u64));
        }
        true
    }

    /// Reads the caches.
    pub(super) fn read(&self, memory: &dyn Memory) -> Round {
        let mut round = Round::default();
        for cache in &self.0 {
            let bins = bins(&window(memory, *cache)).unwrap_or_default();
            if !round.has_room(&bins) {
                continue;
            }
            let Some((start, words)) = stacks(memory, &bins) else {
                continue;
            };
            round
                .stacks
                .insert(start, start.saturating_add(8 * words.len() as u64));
            for (bin, class) in bins.iter().zip(0..) {
                let index = |at: u64| usize::try_from(at.saturating_sub(start) / 8).unwrap_or(usize::MAX);
                let cached = words.get(index(bin.top)..index(bin.end)).unwrap_or_default();
                let cached = cached.iter().map(|&address| Cached { address, class });
                round.cached.extend(cached);
            }
        }
        round.cached.sort_unstable();
        round
    }
}

impl Round {
    /// Returns true if there is room for the blocks in some bins, and if no other cache has their stacks: no
    /// memory is read twice.
    fn has_room(&self, bins: &[Bin]) -> bool {
        let (Some(first), Some(last)) = (bins.first(), bins.last()) else {
            return false;
        };
        let before = self.stacks.range(..=last.end).next_back();
        let is_apart = before.is_none_or(|(_, end)| *end < first.lowest);
        let filled: u64 = bins.iter().map(|bin| (bin.end - bin.top) / 8).sum();
        is_apart && self.cached.len() as u64 + filled <= MAX_CACHED
    }

    /// Blocks that were in caches at another moment, too.
    pub(super) fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a Cached> {
        let both = self.cached.iter();
        both.filter(|cached| other.cached.binary_search(cached).is_ok())
    }

    /// Addresses of the stacks' memory that was there at another moment, too; ascending.
    pub(super) fn stacks<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u64> {
        let both = self.stacks.keys().copied();
        both.filter(|stack| other.stacks.contains_key(stack))
    }
}

/// Finds the index of the link to the next thread's data in `words`, the first words of the data at `first`:
/// the next thread's data links back to `first`, and the last thread's data links forward to it.
fn ring(memory: &dyn Memory, first: u64, words: &[u64]) -> Option<usize> {
    let leads = |from: u64, index: usize| {
        let at = from.checked_add(8 * index as u64);
        at.is_some_and(|at| from >= PAGE && word(memory, at) == Some(first))
    };
    let links = words.iter().zip(words.iter().skip(1));
    let mut links = links.zip(0..);
    links
        .find(|&((&next, &last), index)| leads(next, index + 1) && leads(last, index))
        .map(|(_, index)| index)
}

/// Finds the memory of stacks that are not `known`: of caches that were just made, or that the program has
/// made itself.
pub(super) fn others(memory: &dyn Memory, extents: &Extents, known: &[Range<u64>]) -> Vec<Range<u64>> {
    let classes = known
        .iter()
        .filter_map(|stack| Some(extents.of(stack.start)?.class()));
    // Caches that the program makes have their bins in the same block, which is a bit larger.
    let classes: BTreeSet<u64> = classes.flat_map(|class| class..class + 3).collect();
    let is_candidate = |block: &Range<u64>| {
        let bytes = block.end - block.start;
        block.start.is_multiple_of(PAGE) && (PAGE..=8 * MAX_WORDS).contains(&bytes)
    };
    // Caches are in the first arena.
    let mut blocks: Vec<Range<u64>> = Vec::new();
    let own = extents.iter().filter(|extent| extent.arena() == 0);
    for extent in own.filter(|extent| classes.is_empty() || classes.contains(&extent.class())) {
        let candidates = extents.blocks(extent).filter(is_candidate);
        blocks.extend(candidates.take(MAX_OTHERS - blocks.len()));
    }
    blocks.retain(|block| {
        known
            .binary_search_by_key(&block.start, |known| known.start)
            .is_err()
    });
    let places: Vec<u64> = blocks.iter().map(|block| block.start).collect();
    let mut marked = BTreeSet::new();
    records::visit(memory, &places, &mut |at, [word]| {
        if *word == BEFORE {
            marked.insert(at);
        }
    });
    blocks.retain(|block| marked.contains(&block.start));
    blocks
}
