//! Lists of free blocks: of each page, three, and of each heap, one of blocks that other threads have freed.
//! The first word of a free block leads to the next, encoded in secure variants.
//!
//! A page has the number of blocks that are not in its first two lists, so that lists that change while they
//! are read are noticed.

use std::collections::{BTreeMap, BTreeSet};

use unwind_tables::addr::Avma;

use super::super::heads::Heads;
use super::forms::{Form, decode};
use super::segments::{Page, Records, Segment};
use crate::Memory;

/// Number of pages, and maximum number of blocks in them, that are read together.
const PAGES: usize = 1 << 8;
const BLOCKS: u64 = 1 << 20;
/// Number of attempts to read a page that changes meanwhile.
const TRIES: usize = 4;
/// Maximum number of blocks in lists of heaps.
const MAX_DELAYED: usize = 1 << 24;

/// Free blocks, and pages whose lists contradict them.
#[derive(Debug, Default)]
pub(super) struct Free {
    /// Addresses, ascending.
    pub blocks: Vec<u64>,
    /// Addresses of the records of pages.
    pub malformed: BTreeSet<u64>,
    /// Heaps whose lists cannot be read, and heaps that do not lead back to their threads.
    pub unknown_heaps: BTreeSet<u64>,
}

impl Free {
    pub(super) fn has(&self, address: u64) -> bool {
        self.blocks.binary_search(&address).is_ok()
    }
}

/// Reads the lists of all pages and heaps.
pub(super) fn read(memory: &dyn Memory, segments: &mut [Segment]) -> Free {
    let mut free = Free::default();
    let delayed = read_heaps(memory, segments, &mut free);
    let mut left: Vec<(usize, usize)> = Vec::new();
    for (number, segment) in segments.iter().enumerate() {
        left.extend((0..segment.pages.len()).map(|page| (number, page)));
    }
    for attempt in 0..TRIES {
        if attempt > 0 {
            refresh(memory, segments, &left);
        }
        let mut again = Vec::new();
        let mut rest = &left[..];
        while !rest.is_empty() {
            let (group, others) = rest.split_at(together(segments, rest));
            rest = others;
            read_group(memory, segments, group, &mut free, &mut again);
        }
        left = again;
    }
    let refused = left.iter().filter_map(|place| page(segments, *place));
    free.malformed.extend(refused.map(|(_, page)| page.at));
    // A block that was in a heap's list may have come into its page's meanwhile.
    free.blocks.extend(delayed);
    free.blocks.sort_unstable();
    free.blocks.dedup();
    free
}

fn page(segments: &[Segment], (segment, page): (usize, usize)) -> Option<(&Segment, &Page)> {
    let segment = segments.get(segment)?;
    Some((segment, segment.pages.get(page)?))
}

/// Number of the first pages that are read together.
fn together(segments: &[Segment], places: &[(usize, usize)]) -> usize {
    let mut blocks = 0;
    let fits = |place: &&(usize, usize)| {
        blocks += page(segments, **place).map_or(0, |(_, page)| page.row.count);
        blocks <= BLOCKS
    };
    let count = places.iter().take(PAGES).take_while(fits).count();
    count.max(1).min(places.len())
}

/// Adds the free blocks of some pages, or else their places to `again`.
fn read_group(
    memory: &dyn Memory,
    segments: &[Segment],
    group: &[(usize, usize)],
    free: &mut Free,
    again: &mut Vec<(usize, usize)>,
) {
    let pages = group.iter().filter_map(|place| page(segments, *place));
    let pages: Vec<(&Segment, &Page)> = pages.collect();
    let rows = pages.iter().map(|(_, page)| page.row).collect();
    let heads = Heads::read(memory, rows);
    for (row, ((segment, page), place)) in pages.iter().zip(group).enumerate() {
        let before = free.blocks.len();
        let is_same = Page::again(memory, segment, page).as_ref() == Some(*page);
        if !is_same || !walk(&heads, row, page, &mut free.blocks) {
            free.blocks.truncate(before);
            again.push(*place);
        }
    }
}

/// Adds the blocks of a page's lists; returns false if they contradict the page.
fn walk(heads: &Heads, row: usize, page: &Page, free: &mut Vec<u64>) -> bool {
    let mut seen = BTreeSet::new();
    let mut add = |first: u64, most: u64| {
        let mut next = first;
        let mut count = 0;
        while next != 0 {
            let word = heads.of(row, next).filter(|_| count < most && seen.insert(next));
            let word = word?;
            free.push(next);
            count += 1;
            next = decode(word, page.keys, page.at);
        }
        Some(count)
    };
    let own = page.row.count - page.used;
    let all = add(page.free, own).and_then(|count| Some(count + add(page.local, own - count)?));
    all == Some(own) && add(page.thread, page.used).is_some()
}

/// Reads the records of pages again.
fn refresh(memory: &dyn Memory, segments: &mut [Segment], places: &[(usize, usize)]) {
    for &(number, index) in places {
        let now = page(segments, (number, index));
        let now = now.and_then(|(segment, page)| Page::again(memory, segment, page));
        let old = segments
            .get_mut(number)
            .and_then(|segment| segment.pages.get_mut(index));
        if let (Some(now), Some(old)) = (now, old)
            && now.row.start == old.row.start
            && now.row.bytes == old.row.bytes
        {
            *old = now;
        }
    }
}

/// A heap: its address, and the form and the thread of its segments.
type Heaps = BTreeMap<u64, (Form, u64)>;

/// Reads the lists of all heaps.
fn read_heaps(memory: &dyn Memory, segments: &[Segment], free: &mut Free) -> Vec<u64> {
    let mut heaps = Heaps::new();
    for segment in segments {
        let Records::InSegment(form) = segment.records else {
            continue;
        };
        // Pages of a thread that has ended are of no heap.
        let pages = segment.pages.iter().filter(|page| page.heap != 0);
        for page in pages {
            heaps.insert(page.heap, (form, segment.thread));
        }
    }
    let mut blocks = Vec::new();
    for (&heap, &(form, thread)) in &heaps {
        let mut tries = 0..TRIES;
        let read =
            |blocks: &mut Vec<u64>| read_heap(memory, segments, (heap, form, thread), blocks).is_some();
        if !tries.any(|_| read(&mut blocks)) {
            free.unknown_heaps.insert(heap);
        }
    }
    blocks
}

/// Adds the blocks of a heap's list; `None` if it is no heap of the thread, or if the list leads elsewhere.
fn read_heap(
    memory: &dyn Memory,
    segments: &[Segment],
    (heap, form, thread): (u64, Form, u64),
    blocks: &mut Vec<u64>,
) -> Option<()> {
    let read = |at: u64| {
        let mut word = [0];
        (at.is_multiple_of(8) && memory.read(Avma::new(at), &mut word)).then_some(word[0])
    };
    if read(heap.checked_add(form.thread)?)? != thread {
        return None;
    }
    let keys = match form.heap_keys {
        None => None,
        Some(keys) => {
            let at = heap.checked_add(keys)?;
            Some([read(at)?, read(at.checked_add(8)?)?])
        }
    };
    let mut next = read(heap.checked_add(form.delayed)?)?;
    let mut seen = BTreeSet::new();
    while next != 0 {
        let segment = segments.partition_point(|segment| segment.end <= next);
        let page = segments.get(segment)?.page_of(next)?;
        page.row.number_of(next)?;
        if !seen.insert(next) || blocks.len() == MAX_DELAYED {
            return None;
        }
        blocks.push(next);
        next = decode(read(next)?, keys, heap);
    }
    Some(())
}
