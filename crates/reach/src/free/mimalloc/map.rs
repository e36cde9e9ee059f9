//! Map from slices of 64 KiB to the records of pages in mimalloc 3 (`_mi_page_map`): two levels, of which the
//! first leads to parts for 512 MiB each. Its first part, for the lowest addresses, is right behind it.
//!
//! The first words of a record (`mi_page_t`) are in the same places in 3.0.1, 3.0.12, 3.1.6, 3.2.8, 3.3.2 and
//! 3.4.3, but for the start of the blocks, and for secure variants: their encoded links contradict the pages.

use std::collections::BTreeSet;
use std::ops::Range;

use super::super::heads::Row;
use super::super::records::{self, data, range};
use super::segments::{Page, Records, SLICE, Segment};
use crate::Memory;
use memleak_process::maps::MapsEntry;

/// Sizes in bytes of the first level, for addresses of 47 and of 48 bits.
const ROOTS: [u64; 2] = [2 << 20, 4 << 20];
/// Bytes of a part, and slices that it is for.
const PART: u64 = 8 * PART_SLICES;
const PART_SLICES: u64 = 1 << 13;
/// Alignment of the map, and maximum number of words of data that are tried.
const ALIGNMENT: u64 = 4096;
const MAX_TRIED: usize = 1 << 16;
const MAX_MAPS: usize = 4;
/// Maximum number of runs of slices that are kept: 1 TiB of memory.
const MAX_RUNS: usize = 1 << 24;

/// Words of a record that are read.
pub(super) const WORDS: usize = 7;
/// Words: the list of free blocks; numbers of blocks; the list of those freed by the owner; the list of those
/// freed by other threads; the size; and the start of blocks: its address, or in the lower half the number of
/// words from the record on, since 3.4.
const FREE: usize = 1;
const COUNTS: usize = 2;
const LOCAL: usize = 3;
const THREAD: usize = 4;
const SIZE: usize = 5;
const START: usize = 6;

/// Consecutive slices with the same word in the map, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    slices: Range<u64>,
    record: u64,
}

/// Finds the pages that maps lead to, as segments of adjacent pages.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Segment> {
    let mut runs = Vec::new();
    for (root, bytes) in roots(memory, maps) {
        runs.extend(read(memory, root, bytes));
    }
    let mut places: Vec<u64> = runs.iter().map(|run| run.record).collect();
    places.sort_unstable();
    places.dedup_by(|next, last| *next < last.saturating_add(8 * WORDS as u64));
    let mut words_of = Vec::with_capacity(places.len());
    records::visit(memory, &places, &mut |at, words: &[u64; WORDS]| {
        words_of.push((at, *words))
    });
    words_of.sort_unstable();
    let parts = runs.iter().map(|run| {
        let slices = run.slices.start * SLICE..run.slices.end * SLICE;
        let words = words_of.binary_search_by_key(&run.record, |(at, _)| *at);
        let words = words.ok().and_then(|index| words_of.get(index));
        let page = words.and_then(|(at, words)| page(*at, words, &slices));
        (slices, page)
    });
    segments(parts.collect())
}

/// Finds maps by the data that leads to them.
fn roots(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<(u64, u64)> {
    let mut tried = BTreeSet::new();
    for data in data(maps) {
        memory.visit(&[range(&data)], &mut |_, words| {
            let aligned = words
                .iter()
                .filter(|word| **word != 0 && word.is_multiple_of(ALIGNMENT));
            let rest = MAX_TRIED - tried.len();
            tried.extend(aligned.copied().take(rest));
        });
    }
    let places: Vec<u64> = tried.into_iter().collect();
    let mut found = Vec::new();
    records::visit(memory, &places, &mut |at, &[first]| {
        let mut sizes = ROOTS.into_iter();
        let size = sizes.find(|size| at.checked_add(*size) == Some(first));
        found.extend(size.map(|size| (at, size)));
    });
    found.truncate(MAX_MAPS);
    found
}

/// Reads a map.
fn read(memory: &dyn Memory, root: u64, bytes: u64) -> Vec<Run> {
    let mut parts = Vec::new();
    memory.visit(&[range(&(root..root + bytes))], &mut |at, words| {
        let first = at.get().saturating_sub(root) / 8;
        let all = words.iter().zip(first..);
        let leading = all.filter(|(part, index)| **part != 0 && *index > 0);
        parts.extend(leading.map(|(part, index)| (*part, index)));
    });
    // Each part is read once, and none overlaps another: so no more is read than there is.
    parts.sort_unstable();
    parts.dedup_by(|next, last| next.0 < last.0.saturating_add(PART));
    let mut runs: Vec<Run> = Vec::new();
    parts.sort_unstable_by_key(|(_, index)| *index);
    for (part, index) in parts {
        let part = part..part.saturating_add(PART);
        memory.visit(&[range(&part)], &mut |at, words| {
            let first = index * PART_SLICES + at.get().saturating_sub(part.start) / 8;
            for (&record, slice) in words.iter().zip(first..) {
                if record == 0 || !record.is_multiple_of(8) {
                    continue;
                }
                let last = runs.last_mut();
                let last = last.filter(|last| last.record == record && last.slices.end == slice);
                if let Some(last) = last {
                    last.slices.end += 1;
                } else if runs.len() < MAX_RUNS {
                    runs.push(Run {
                        slices: slice..slice + 1,
                        record,
                    });
                }
            }
        });
    }
    runs
}

/// Returns the page of a record, unless it contradicts itself or the map.
pub(super) fn page(at: u64, words: &[u64; WORDS], slices: &Range<u64>) -> Option<Page> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let count = |shift: u32| word(COUNTS) >> shift & 0xffff;
    let (used, capacity, reserved) = (count(0), count(16), count(32));
    let bytes = Some(word(SIZE)).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(8))?;
    let behind = at.checked_add(8 * (word(START) & 0xffff_ffff));
    let mut starts = [Some(word(START)), behind].into_iter().flatten();
    let start = starts.find(|start| slices.contains(start))?;
    let end = reserved.checked_mul(bytes).and_then(|all| start.checked_add(all));
    let end = end.filter(|end| *end <= 1 << 57)?;
    // The map does not lead from the last slice of a page that has more than its blocks, by the record, nor
    // from all of a huge page.
    let is_within = end <= slices.end.saturating_add(SLICE) || reserved == 1;
    let is_apart = at != slices.start || start >= at + 8 * WORDS as u64;
    let is_right = is_within && is_apart && capacity <= reserved && used <= capacity;
    is_right.then(|| Page {
        at,
        start: slices.start,
        end: end.next_multiple_of(SLICE).max(slices.end),
        row: Row {
            start,
            bytes,
            count: capacity,
        },
        used,
        free: word(FREE),
        local: word(LOCAL),
        thread: word(THREAD) & !7,
        keys: None,
        heap: 0,
    })
}

/// Joins adjacent pages. Those that overlap with others are not known.
fn segments(parts: Vec<(Range<u64>, Option<Page>)>) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    let mut parts = parts.into_iter().peekable();
    while let Some((slices, page)) = parts.next() {
        let end_of_next = parts.peek().map_or(u64::MAX, |(next, _)| next.start);
        let page = page.filter(|page| page.end <= end_of_next);
        let end = page.map_or(slices.end, |page| page.end);
        let last = found.last_mut().filter(|last| last.end == slices.start);
        let segment = match last {
            Some(last) => last,
            None => {
                found.push(Segment::of_pages(slices.start));
                let Some(last) = found.last_mut() else {
                    break;
                };
                last
            }
        };
        segment.end = end;
        match page {
            Some(page) => segment.pages.push(page),
            None => segment.malformed.push(slices),
        }
    }
    // A map leads to pages, or it is none.
    let has_pages = found.iter().any(|segment| !segment.pages.is_empty());
    found.retain(|_| has_pages);
    found
}

impl Segment {
    fn of_pages(start: u64) -> Self {
        Self {
            start,
            end: start,
            records: Records::ByMap,
            info: start..start,
            pages: Vec::new(),
            free: Vec::new(),
            malformed: Vec::new(),
            is_empty: false,
            cookie: 0,
            thread: 0,
        }
    }
}
