//! Caches of free blocks: a list for each class in each thread's cache (`ThreadCache`), and chains that
//! central lists keep for threads. The first word of a cached block is the address of the next; cached blocks
//! count as used in their spans.
//!
//! A thread's cache begins with its lists, each with the size of its blocks. All caches are linked; the data
//! of tcmalloc's object leads to the first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::records;
use super::spans::{Kind, Spans};
use super::statics::{CLASSES, Sizes, Statics};
use crate::Memory;

/// Words of a list: the first block, its length and low mark, limits, and the size of its blocks.
const LIST: usize = 4;
const LISTS: usize = LIST * CLASSES;
/// Words from the start of a cache to its links, since 2.16 and before: the latter have the thread's id
/// before the links. All are of the same size.
const TO_LINKS: [usize; 2] = [LISTS + 4, LISTS + 6];
const CACHE: u64 = 8 * (LISTS as u64 + 8);
const MAX_THREADS: usize = 1 << 16;
/// Maximum number of blocks in caches.
const MAX_CACHED: usize = 1 << 24;
/// Number of attempts to read a list that changes meanwhile.
const TRIES: usize = 4;

/// Addresses of all threads' caches.
#[derive(Debug, Default)]
pub(super) struct Threads(BTreeSet<u64>);

/// All caches at one moment.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Ascending.
    pub cached: Vec<u64>,
    /// Classes with a list that cannot be read, though it does not change.
    pub unknown: BTreeSet<usize>,
}

/// A list of cached blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct List {
    class: usize,
    first: u64,
    length: u64,
    /// Address of the list in a thread's cache; `None` for a chain.
    at: Option<u64>,
}

/// Finds the caches of all threads.
pub(super) fn find(memory: &dyn Memory, statics: &Statics) -> Threads {
    let mut places: Vec<u64> = statics.words.iter().map(|(_, word)| *word).collect();
    places.sort_unstable();
    places.dedup();
    // Words of the size of the smallest blocks.
    let first_size = 8 * (2 * LIST as u64 - 1);
    let sizes: Vec<u64> = places.iter().map(|at| at.saturating_add(first_size)).collect();
    let mut candidates = Vec::new();
    records::visit(memory, &sizes, &mut |at, &[word]| {
        if word & 0xffff_ffff == 8 {
            candidates.push(at - first_size);
        }
    });
    candidates.retain(|at| has_sizes(memory, *at, &statics.sizes));
    let mut best = Threads::default();
    for &candidate in &candidates {
        for to_links in TO_LINKS {
            let found = Threads::linked(memory, candidate, to_links, &statics.sizes);
            if found.0.len() > best.0.len() {
                best = found;
            }
        }
    }
    best
}

fn lists(memory: &dyn Memory, at: u64) -> Option<[u64; LISTS]> {
    let mut words = [0; LISTS];
    (at.is_multiple_of(8) && memory.read(Avma::new(at), &mut words)).then_some(words)
}

/// Returns true if there is a cache whose lists are of the sizes of all classes.
fn has_sizes(memory: &dyn Memory, at: u64, sizes: &Sizes) -> bool {
    let Some(words) = lists(memory, at) else {
        return false;
    };
    let mut lists = words.chunks_exact(LIST).enumerate().take(sizes.count());
    lists.all(|(class, list)| {
        let size = list.last().map_or(0, |word| word & 0xffff_ffff);
        size == sizes.class(class).map_or(0, |(bytes, _)| bytes)
    })
}

impl Threads {
    /// Caches that are linked with the one at `first`, both ways.
    fn linked(memory: &dyn Memory, first: u64, to_links: usize, sizes: &Sizes) -> Self {
        let links = |at: u64| {
            let mut links = [0; 2];
            let place = at.checked_add(8 * to_links as u64)?;
            memory.read(Avma::new(place), &mut links).then_some(links)
        };
        let mut found = BTreeSet::new();
        for forward in [true, false] {
            let step = |at: u64| {
                let [next, last] = links(at)?;
                Some(if forward { next } else { last })
            };
            let leads_back = |from: u64, to: u64| {
                links(to).is_some_and(|[next, last]| if forward { last } else { next } == from)
            };
            let mut at = first;
            while found.len() < MAX_THREADS {
                found.insert(at);
                let Some(next) = step(at).filter(|next| *next != 0) else {
                    break;
                };
                if found.contains(&next) || !leads_back(at, next) || !has_sizes(memory, next, sizes) {
                    break;
                }
                at = next;
            }
        }
        Self(found)
    }

    pub(super) fn are_found(&self) -> bool {
        !self.0.is_empty()
    }

    /// Memory of the caches.
    pub(super) fn memory(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|at| *at..at.saturating_add(CACHE))
    }

    /// Reads all caches, and the chains of central lists.
    pub(super) fn read(&self, memory: &dyn Memory, statics: &Statics, spans: &Spans) -> Round {
        let mut round = Round::default();
        let mut left = self.lists(memory, statics);
        for _ in 0..TRIES {
            if left.is_empty() {
                break;
            }
            let failed = round.walk(memory, spans, &left);
            left.clear();
            for list in failed {
                // A list that has not changed meanwhile would fail again.
                match list.now(memory, statics) {
                    Some(now) if now == list => {
                        round.unknown.insert(list.class);
                    }
                    Some(now) => left.push(now),
                    None => {}
                }
            }
        }
        round.cached.sort_unstable();
        round.cached.dedup();
        round
    }

    fn lists(&self, memory: &dyn Memory, statics: &Statics) -> Vec<List> {
        let mut found = Vec::new();
        for class in 1..statics.sizes.count() {
            let chains = statics.chains(memory, class).into_iter();
            found.extend(chains.map(|first| List {
                class,
                first,
                length: statics.sizes.chain(class),
                at: None,
            }));
        }
        for &cache in &self.0 {
            let Some(words) = lists(memory, cache) else {
                continue;
            };
            let places = (cache..).step_by(8 * LIST);
            let lists = words.chunks_exact(LIST).zip(places).enumerate();
            let lists = lists.skip(1).take(statics.sizes.count() - 1);
            found.extend(lists.filter_map(|(class, (list, at))| List::new(class, list, at)));
        }
        found
    }
}

impl List {
    /// Returns a thread's list, unless it is empty.
    fn new(class: usize, words: &[u64], at: u64) -> Option<Self> {
        let &[first, length, ..] = words else {
            return None;
        };
        let length = length & 0xffff_ffff;
        (first != 0 || length != 0).then_some(Self {
            class,
            first,
            length,
            at: Some(at),
        })
    }

    /// The list as it is now; `None` if it is empty, or a chain that is no longer kept.
    fn now(&self, memory: &dyn Memory, statics: &Statics) -> Option<Self> {
        let Some(at) = self.at else {
            let chains = statics.chains(memory, self.class);
            return chains.contains(&self.first).then_some(*self);
        };
        let mut words = [0; LIST];
        memory.read(Avma::new(at), &mut words);
        Self::new(self.class, &words, at)
    }
}

impl Round {
    /// Adds the blocks of lists, by a step in all of them at a time. Returns the lists that do not lead to
    /// as many blocks of their class as they have.
    fn walk(&mut self, memory: &dyn Memory, spans: &Spans, lists: &[List]) -> Vec<List> {
        let mut failed = Vec::new();
        // No block is in two lists, or twice in one.
        let mut seen = HashSet::new();
        // Lists with the address of the block to be read next, and the number of blocks from that on.
        let mut next: Vec<(u64, u64, &List)> = Vec::new();
        next.extend(lists.iter().map(|list| (list.first, list.length, list)));
        while !next.is_empty() {
            let mut steps: BTreeMap<u64, (u64, &List)> = BTreeMap::new();
            for (at, left, list) in next.drain(..) {
                if left == 0 && at == 0 {
                    continue;
                }
                let has_room = self.cached.len() < MAX_CACHED;
                if left > 0 && has_room && is_block(spans, at, list.class) && seen.insert(at) {
                    self.cached.push(at);
                    steps.insert(at, (left, list));
                } else {
                    failed.push(*list);
                }
            }
            let places: Vec<u64> = steps.keys().copied().collect();
            records::visit(memory, &places, &mut |at, &[word]| {
                if let Some((left, list)) = steps.remove(&at) {
                    next.push((word, left - 1, list));
                }
            });
            // Blocks in memory that cannot be read.
            failed.extend(steps.into_values().map(|(_, list)| *list));
        }
        failed
    }

    /// Blocks that were in caches at another moment, too.
    pub(super) fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = u64> {
        let both = self.cached.iter().copied();
        both.filter(|cached| other.cached.binary_search(cached).is_ok())
    }
}

fn is_block(spans: &Spans, at: u64, class: usize) -> bool {
    spans.of(at).is_some_and(|span| {
        let is_of_class = matches!(span.kind, Kind::Blocks { class: of, .. } if of == class);
        is_of_class && span.has_block_at(at)
    })
}
