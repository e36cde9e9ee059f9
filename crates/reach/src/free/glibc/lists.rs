//! Lists of free chunks that look used, so that they are not joined with their neighbours: caches of threads,
//! and the arenas' lists of small chunks. Only chunks that a walk has found, and that contain no listed
//! block, are taken from them.
//!
//! Since 2.32, a link is mangled with its own address.

use std::collections::BTreeSet;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::arenas::{Arena, FAST_BINS, word};
use super::walk::{Chunk, HEADER, MIN_SIZE, size};
use crate::Memory;

use super::super::granules::Granules;

/// Words of a line, a page, and number of lines in the cache. Neighbours in a list are often neighbours in
/// memory, and to read a page takes little longer than to read a word.
const LINE_WORDS: usize = 512;
const LINES: usize = 1 << 11;
const LINE: u64 = LINE_WORDS as u64 * 8;
/// Number of lines that are read together if one of them is at most so many lines from the last one that was
/// missing: then a list goes through memory in order.
const GROUP: usize = 16;
const NEAR: u64 = 16;
/// Maximum number of chunks in all lists together.
const MAX_CHUNKS: u64 = 1 << 25;
/// Number of attempts to read a cache, which its thread may be changing.
const TRIES: usize = 3;
/// Number of bins of a cache that may contradict themselves, as its thread may be changing them.
const ODD_BINS: usize = 2;

/// Layout of a thread's cache (`struct tcache_perthread_struct`): a number for each bin, then the first chunk
/// of each.
#[derive(Debug)]
struct Layout {
    /// Sizes that the chunk with the cache can have.
    sizes: &'static [u64],
    bins: usize,
    /// Bytes of each number.
    number: usize,
    /// True if numbers are those of chunks that a bin still has room for, not of chunks in it.
    counts_down: bool,
    /// True if all chunks in the cache have the same second word.
    has_key: bool,
}

/// Layouts of 2.26 to 2.29 (with a key only in the last), of 2.30 to 2.41, and since 2.42.
const LAYOUTS: [Layout; 3] = [
    Layout {
        sizes: &[0x250],
        bins: 64,
        number: 1,
        counts_down: false,
        has_key: false,
    },
    Layout {
        sizes: &[0x290],
        bins: 64,
        number: 2,
        counts_down: false,
        has_key: true,
    },
    Layout {
        // An arena that is just made for the thread rounds the size up twice.
        sizes: &[0x300, 0x310],
        bins: 76,
        number: 2,
        counts_down: true,
        has_key: true,
    },
];

/// Bins for chunks of a single size; the others are for ranges of sizes.
const SMALL_BINS: usize = 64;

/// Sizes of chunks that can be caches.
pub(super) const CACHE_SIZES: [u64; 4] = [
    LAYOUTS[0].sizes[0],
    LAYOUTS[1].sizes[0],
    LAYOUTS[2].sizes[0],
    LAYOUTS[2].sizes[1],
];

/// Free chunks in lists.
pub(super) struct Lists<'a> {
    lines: Lines<'a>,
    /// Chunks that look used. Those in lists are removed.
    unlisted: &'a mut Granules,
    /// True if the chunks themselves are wanted, not their memory.
    pub has_starts: bool,
    /// All memory of the chunks.
    pub cached: Granules,
    /// The chunks themselves, and those of them that are in the arenas' lists.
    pub starts: Granules,
    pub unjoined: Granules,
    pub count: u64,
    /// Second words of the chunks in caches, by which glibc recognizes them.
    pub keys: BTreeSet<u64>,
    /// True if lists are followed through chunks that no walk has met, too: chunks behind these are free all
    /// the same. Only for uses where a chunk that is wrongly taken for free does no harm.
    pub goes_on: bool,
}

/// A list of small chunks of one size, from the next chunk on.
struct List {
    chunk: u64,
    size: u64,
    links: Option<Links>,
    /// Maximum number of further chunks.
    left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Mangled,
    Plain,
}

impl<'a> Lists<'a> {
    pub(super) fn new(memory: &'a dyn Memory, unlisted: &'a mut Granules) -> Self {
        Self {
            lines: Lines::new(memory),
            unlisted,
            has_starts: false,
            cached: Granules::default(),
            starts: Granules::default(),
            unjoined: Granules::default(),
            count: 0,
            keys: BTreeSet::new(),
            goes_on: false,
        }
    }

    /// Adds the chunks in a thread's cache, if `chunk` contains one. Returns the memory of the cache itself.
    pub(super) fn add_cache(&mut self, chunk: Chunk) -> Option<Range<u64>> {
        let layout = LAYOUTS.iter().find(|layout| layout.sizes.contains(&chunk.size))?;
        let mut is_cache = false;
        for _ in 0..TRIES {
            let bins = read_cache(self.lines.memory, layout, chunk.at)?;
            let is_whole = bins.iter().enumerate().filter(|(_, (count, _))| *count > 0);
            let mut taken = Vec::new();
            let mut broken = 0;
            for (bin, &(count, first)) in is_whole {
                match self.take_bin(bin, count, first) {
                    Some(chunks) => taken.push(chunks),
                    None => broken += 1,
                }
            }
            let key = taken.first().and_then(|chunks| self.key(chunks.first()?.0));
            for chunks in &taken {
                let has_key = |(at, _): &(u64, u64)| !layout.has_key || self.key(*at) == key;
                match chunks.iter().all(has_key) {
                    true => self.keep(chunks),
                    false => self.put_back(chunks),
                }
            }
            self.keys.extend(key.filter(|key| layout.has_key && *key != 0));
            is_cache |= !taken.is_empty();
            // Chunks of the bins that were taken are missing for a second attempt.
            if broken == 0 || is_cache {
                break;
            }
            self.lines.forget();
        }
        is_cache.then(|| chunk.at + 8..chunk.at + chunk.size)
    }

    /// Adds the chunks in an arena's lists of small chunks.
    pub(super) fn add_arena(&mut self, arena: &Arena) {
        let Some(first) = arena.fast_bins_at() else {
            return;
        };
        let heads = (0..FAST_BINS).filter_map(|index| {
            Some(List {
                chunk: word(self.lines.memory, first + 8 * index)?,
                size: MIN_SIZE + 16 * index,
                links: None,
                left: MAX_CHUNKS.saturating_sub(self.count),
            })
        });
        let mut lists: Vec<List> = heads.collect();
        // A program frees chunks of all sizes at a time, so that they are neighbours: the list that goes on
        // in memory that was just read comes first.
        loop {
            let last = self.lines.last;
            let distance = |list: &List| (list.chunk / LINE).abs_diff(last);
            let Some(next) = (0..lists.len()).min_by_key(|&index| distance(&lists[index])) else {
                return;
            };
            if !self.follow(&mut lists[next]) {
                lists.swap_remove(next);
            }
        }
    }

    /// Adds the next chunks of a list, as far as memory has been read. Returns false at its end.
    fn follow(&mut self, list: &mut List) -> bool {
        let sizes = list.size..list.size + 1;
        while list.left > 0 {
            list.left -= 1;
            if self.take(list.chunk, &sizes).is_some() {
                self.keep(&[(list.chunk, list.size)]);
                if self.has_starts {
                    self.unjoined.insert(list.chunk);
                }
            } else if !self.goes_on || !self.is_chunk(list.chunk, &sizes) {
                return false;
            }
            let Some(next) = self.next(list.chunk.wrapping_add(HEADER), 0, &mut list.links) else {
                return false;
            };
            list.chunk = next;
            if !self.lines.has(next) {
                return true;
            }
        }
        false
    }

    /// Takes the chunks in a cache's bin, if there are as many as the cache says.
    fn take_bin(&mut self, bin: usize, count: u64, first: u64) -> Option<Vec<(u64, u64)>> {
        let sizes = match bin {
            bin if bin < SMALL_BINS => MIN_SIZE + 16 * bin as u64..MIN_SIZE + 16 * bin as u64 + 1,
            _ => MIN_SIZE + 16 * SMALL_BINS as u64..8 << 20,
        };
        let mut links = None;
        let mut chunks = Vec::new();
        let mut at = first;
        let is_whole = loop {
            // Links of caches lead to the contents of chunks, not to headers.
            let Some(size) = self.take(at.wrapping_sub(HEADER), &sizes) else {
                break false;
            };
            chunks.push((at - HEADER, size));
            match self.next(at, HEADER, &mut links) {
                Some(0) => break chunks.len() as u64 == count,
                Some(next) if (chunks.len() as u64) < count => at = next,
                Some(_) | None => break false,
            }
        };
        if !is_whole {
            self.put_back(&chunks);
        }
        is_whole.then_some(chunks)
    }

    /// Removes a chunk from those that look used, if its size is in `sizes`.
    fn take(&mut self, chunk: u64, sizes: &Range<u64>) -> Option<u64> {
        if !chunk.is_multiple_of(16) || !self.unlisted.has(chunk) {
            return None;
        }
        let size = size(self.lines.word(chunk.wrapping_add(8))?);
        (sizes.contains(&size) && self.unlisted.take(chunk)).then_some(size)
    }

    /// Returns true if, by its header, `chunk` has a size in `sizes`.
    fn is_chunk(&mut self, chunk: u64, sizes: &Range<u64>) -> bool {
        let word = chunk
            .is_multiple_of(16)
            .then(|| self.lines.word(chunk.wrapping_add(8)));
        word.flatten().is_some_and(|word| sizes.contains(&size(word)))
    }

    fn put_back(&mut self, chunks: &[(u64, u64)]) {
        for &(chunk, _) in chunks {
            self.unlisted.insert(chunk);
        }
    }

    fn keep(&mut self, chunks: &[(u64, u64)]) {
        self.count += chunks.len() as u64;
        for &(chunk, size) in chunks {
            match self.has_starts {
                true => _ = self.starts.insert(chunk),
                false => _ = self.cached.insert_all(chunk, size),
            }
        }
    }

    /// Follows the link at `at` to an address, or to the end, 0. The first link of a list tells if the list's
    /// links are mangled.
    fn next(&mut self, at: u64, header: u64, links: &mut Option<Links>) -> Option<u64> {
        let plain = self.lines.word(at)?;
        let mangled = plain ^ (at >> 12);
        if self.goes_on && links.is_none() && mangled.is_multiple_of(16) && !plain.is_multiple_of(16) {
            *links = Some(Links::Mangled);
        }
        let leads =
            |next: u64| next == 0 || self.unlisted.has(next.wrapping_sub(header)) && next.is_multiple_of(16);
        match links {
            Some(Links::Mangled) => Some(mangled),
            Some(Links::Plain) => Some(plain),
            None if leads(mangled) => {
                *links = Some(Links::Mangled);
                Some(mangled)
            }
            None if leads(plain) => {
                *links = Some(Links::Plain);
                Some(plain)
            }
            None => None,
        }
    }

    fn key(&mut self, chunk: u64) -> Option<u64> {
        self.lines.word(chunk.wrapping_add(HEADER + 8))
    }
}

/// Number of chunks in each bin of a cache, and address of the first one's contents; `None` if `chunk` cannot
/// be a cache.
fn read_cache(memory: &dyn Memory, layout: &Layout, chunk: u64) -> Option<Vec<(u64, u64)>> {
    let numbers = (layout.bins * layout.number).div_ceil(8);
    let mut words = vec![0; numbers + layout.bins];
    if !memory.read(Avma::new(chunk.checked_add(HEADER)?), &mut words) {
        return None;
    }
    let (numbers, entries) = words.split_at(numbers);
    let numbers = (0..layout.bins).map(|bin| {
        let at = bin * layout.number;
        let number = numbers[at / 8] >> (8 * (at % 8));
        number & ((1 << (8 * layout.number)) - 1)
    });
    let numbers: Vec<u64> = numbers.collect();
    let most = numbers.iter().copied().max().filter(|_| layout.counts_down);
    let counts = numbers
        .iter()
        .map(|number| most.map_or(*number, |most| most - number));
    let bins: Vec<_> = counts.zip(entries.iter().copied()).collect();
    let is_odd = |(count, entry): &&(u64, u64)| (*count == 0) != (*entry == 0) || !entry.is_multiple_of(16);
    (bins.iter().filter(is_odd).count() <= ODD_BINS).then_some(bins)
}

/// Memory, read through a cache of lines.
struct Lines<'a> {
    memory: &'a dyn Memory,
    /// Number of each line. `words` has their contents.
    numbers: Vec<u64>,
    words: Vec<u64>,
    /// The line that was missing last.
    last: u64,
}

impl<'a> Lines<'a> {
    fn new(memory: &'a dyn Memory) -> Self {
        Self {
            memory,
            numbers: vec![u64::MAX; LINES],
            words: vec![0; LINES * LINE_WORDS],
            last: u64::MAX,
        }
    }

    fn forget(&mut self) {
        self.numbers.fill(u64::MAX);
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        let number = at / LINE;
        let slot = usize::try_from(number).ok()? % LINES;
        if self.numbers.get(slot) != Some(&number) && !self.load(number) {
            return None;
        }
        let index = slot * LINE_WORDS + usize::try_from(at % LINE / 8).ok()?;
        self.words.get(index).copied()
    }

    fn has(&self, at: u64) -> bool {
        let number = at / LINE;
        let slot = usize::try_from(number).map(|number| number % LINES);
        slot.is_ok_and(|slot| self.numbers.get(slot) == Some(&number))
    }

    /// Reads a line, with the lines around it if the last one was near.
    fn load(&mut self, number: u64) -> bool {
        let is_near = number.abs_diff(self.last) <= NEAR;
        self.last = number;
        let group = number - number % GROUP as u64;
        is_near && self.load_all(group, GROUP) || self.load_all(number, 1)
    }

    /// Reads consecutive lines, whose slots are consecutive, too.
    fn load_all(&mut self, first: u64, count: usize) -> bool {
        let Ok(slot) = usize::try_from(first).map(|first| first % LINES) else {
            return false;
        };
        let numbers = self.numbers.get_mut(slot..slot + count);
        let words = self.words.get_mut(slot * LINE_WORDS..(slot + count) * LINE_WORDS);
        let (Some(numbers), Some(words)) = (numbers, words) else {
            return false;
        };
        numbers.fill(u64::MAX);
        let is_read = self.memory.read(Avma::new(first * LINE), words);
        if is_read {
            for (number, line) in numbers.iter_mut().zip(first..) {
                *number = line;
            }
        }
        is_read
    }
}
