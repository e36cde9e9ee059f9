//! Segments (`mi_segment_t`) and their pages (`mi_page_t`): a segment begins at a multiple of 32 MiB with its
//! record, and is divided into slices of 64 KiB; a page is some consecutive slices, with blocks of one size.
//!
//! A segment's record has its own address, changed by a word that is the same for all. Its entries for slices
//! divide it into the record itself, pages and free slices, and each page leads to the heap of the segment's
//! thread.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::heads::Row;
use super::super::records;
use super::forms::{FORMS, Form, PAGE_WORDS, PageForm, SizeForm};
use super::map;
use crate::Memory;
use crate::ranges::joined;
use memleak_process::maps::MapsEntry;

/// Alignment and size of segments; one with a huge page is longer.
pub(super) const SEGMENT: u64 = 32 << 20;
pub(super) const SLICE: u64 = 64 << 10;
const MAX_ENTRIES: u64 = SEGMENT / SLICE;
/// Maximum number of slices that a segment's own record takes, with guards.
const MAX_INFO: u64 = 2;
/// Maximum number of places that are checked: 32 TiB of memory.
const MAX_PLACES: usize = 1 << 20;
/// One page of so many may contradict its form, as it changes while it is read.
const ODD_PAGES: usize = 16;
/// Maximum number of slices of a segment: an address space.
const MAX_SLICES: u64 = 1 << 31;
/// Value that stands for sizes of blocks that do not fit in 32 bits.
const HUGE_BLOCK: u64 = 2 << 30;
/// A page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Address of its record.
    pub at: u64,
    /// Memory of its slices.
    pub start: u64,
    pub end: u64,
    /// Blocks that may be in use or in lists; further ones were never given out.
    pub row: Row,
    /// Number of blocks that are not in the lists `free` and `local`.
    pub used: u64,
    /// First blocks: of lists, and of that of other threads.
    pub free: u64,
    pub local: u64,
    pub thread: u64,
    pub keys: Option<[u64; 2]>,
    pub heap: u64,
}

/// Where the records of pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Records {
    /// In their segment.
    InSegment(Form),
    /// Where the map of mimalloc 3 leads.
    ByMap,
}

/// A segment, or adjacent pages of mimalloc 3, which has no segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub start: u64,
    pub end: u64,
    pub records: Records,
    /// Memory of its record.
    pub info: Range<u64>,
    pub pages: Vec<Page>,
    /// Memory of slices in no page.
    pub free: Vec<Range<u64>>,
    /// Memory of pages whose records contradict themselves.
    pub malformed: Vec<Range<u64>>,
    /// True if it is kept without any page.
    pub is_empty: bool,
    /// The word that changes its address.
    pub cookie: u64,
    pub thread: u64,
}

/// Finds the segments of a process, ascending, apart from each other.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Segment> {
    let ranges = maps.iter().filter(|entry| records::is_of_allocators(entry));
    let ranges = joined(ranges.map(|entry| entry.range.clone()).collect());
    let mut places = Vec::new();
    for range in &ranges {
        let (start, end) = (range.start.get(), range.end.get());
        let first = start.checked_next_multiple_of(SEGMENT).unwrap_or(end);
        let step = usize::try_from(SEGMENT).unwrap_or(usize::MAX);
        places.extend((first..end).step_by(step).take(MAX_PLACES - places.len()));
    }
    let mut best = (0, Vec::new());
    for form in FORMS {
        let found = of_form(memory, &places, form);
        let pages = found.iter().map(|segment| segment.pages.len()).sum::<usize>();
        let malformed = found.iter().map(|segment| segment.malformed.len()).sum::<usize>();
        // Pages of large blocks are the same in several forms.
        let score = if malformed <= pages / ODD_PAGES { pages } else { 0 };
        match score.cmp(&best.0) {
            Ordering::Greater => best = (score, found),
            // Two forms fit: where blocks are is not known.
            Ordering::Equal => best.1.clear(),
            Ordering::Less => {}
        }
    }
    best.1
}

/// Finds the segments of one form.
fn of_form(memory: &dyn Memory, places: &[u64], form: Form) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    let mut end = 0;
    for &at in places {
        // What is in a segment's pages is contents of blocks.
        let segment = (at >= end).then(|| Segment::read(memory, at, form));
        if let Some(segment) = segment.flatten() {
            if !segment.is_empty {
                end = segment.end;
            }
            found.push(segment);
        }
    }
    of_one_process(found)
}

/// Keeps those with the word that most pages' have, and cuts empty ones off where others begin.
fn of_one_process(mut found: Vec<Segment>) -> Vec<Segment> {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for segment in &found {
        *counts.entry(segment.cookie).or_default() += segment.pages.len();
    }
    let most = counts.iter().max_by_key(|(_, pages)| **pages);
    let cookie = most.filter(|(_, pages)| **pages > 0).map(|(cookie, _)| *cookie);
    found.retain(|segment| Some(segment.cookie) == cookie);
    for index in 1..found.len() {
        let next = found.get(index).map_or(0, |segment| segment.start);
        if let Some(segment) = found.get_mut(index - 1)
            && segment.end > next
        {
            segment.end = next;
            segment.free = std::iter::once(segment.info.end..next).collect();
        }
    }
    found
}

/// Fields of a segment's record.
struct Head {
    used: u64,
    cookie: u64,
    slices: u64,
    info: u64,
    is_huge: bool,
    entries: u64,
    thread: u64,
}

impl Head {
    fn read(memory: &dyn Memory, at: u64, form: Form) -> Option<Self> {
        let read = |offset: u64| {
            let mut word = [0];
            memory.read(Avma::new(at + offset), &mut word).then_some(word[0])
        };
        let mut words = [0; 5];
        let is_read = memory.read(Avma::new(at + form.slices), &mut words);
        let [slices, info, kind, entries, thread] = words;
        let head = Self {
            used: read(form.used)?,
            cookie: read(form.cookie)?,
            slices,
            info,
            is_huge: kind & 0xffff_ffff == 1,
            entries,
            thread,
        };
        let is_right = is_read
            && head.cookie != 0
            && kind & 0xffff_ffff <= 1
            && (1..=MAX_INFO).contains(&info)
            && (info..=MAX_SLICES).contains(&slices)
            && (info + 1..=MAX_ENTRIES).contains(&entries)
            && entries <= slices
            && head.used <= entries
            && (head.is_huge || slices == MAX_ENTRIES);
        is_right.then_some(head)
    }
}

impl Segment {
    /// Reads the segment at `at`; `None` if its record is not of a form.
    fn read(memory: &dyn Memory, at: u64, form: Form) -> Option<Self> {
        let head = Head::read(memory, at, form)?;
        let end = at
            .checked_add(head.slices * SLICE)
            .filter(|end| *end <= 1 << 57)?;
        let words = usize::try_from(head.entries * form.entry / 8).ok()?;
        let mut entries = vec![0; words];
        if !memory.read(Avma::new(at + form.entries), &mut entries) {
            return None;
        }
        let info = at..at + head.info * SLICE;
        let mut segment = Self {
            start: at,
            end,
            records: Records::InSegment(form),
            info,
            pages: Vec::new(),
            free: Vec::new(),
            malformed: Vec::new(),
            is_empty: head.used == 0,
            cookie: head.cookie ^ at,
            thread: head.thread,
        };
        if segment.is_empty {
            segment.end = at + SEGMENT;
            segment.free.push(segment.info.end..segment.end);
            return Some(segment);
        }
        segment.divide(form, &head, &entries).then_some(segment)
    }

    /// Divides a segment into pages and free slices by its entries; returns false if these do not do so.
    fn divide(&mut self, form: Form, head: &Head, entries: &[u64]) -> bool {
        let step = usize::try_from(form.entry / 8).unwrap_or(usize::MAX);
        let entry = |index: u64| {
            let first = usize::try_from(index).ok()?.checked_mul(step)?;
            entries.get(first..first + step)
        };
        let mut index = 0;
        let mut pages = 0;
        while index < head.entries {
            let Some(words) = entry(index) else {
                return false;
            };
            let [count, offset] = [words[0] & 0xffff_ffff, words[0] >> 32];
            let first = index;
            index += count;
            // A huge page, and an aligned one, can be of more slices than there are entries.
            let is_within = index <= head.entries || head.is_huge;
            if count == 0
                || offset != 0
                || !is_within
                || (first == 0) != (count == head.info && first < head.info)
            {
                return false;
            }
            let start = self.start + first * SLICE;
            let range = start..self.end.min(start + count * SLICE);
            let at = self.start + form.entries + first * form.entry;
            let size = form.page.size_of(words);
            if first == 0 {
                continue;
            }
            if size == 0 {
                self.free.push(range);
                continue;
            }
            pages += 1;
            match Page::read(at, words, form.page, range.clone()) {
                Some(page) => self.pages.push(page),
                None => self.malformed.push(range),
            }
        }
        // Slices behind the last entry.
        let divided = self.start + index * SLICE;
        if divided < self.end {
            self.free.push(divided..self.end);
        }
        pages == head.used
    }

    pub(super) fn page_of(&self, address: u64) -> Option<&Page> {
        let candidate = self.pages.partition_point(|page| page.end <= address);
        self.pages.get(candidate).filter(|page| page.start <= address)
    }
}

impl PageForm {
    /// Size of blocks in a record; 0 of free slices.
    fn size_of(self, words: &[u64]) -> u64 {
        let word = |index: usize| words.get(index).copied().unwrap_or_default();
        match self.size {
            SizeForm::Halves(size, _) => word(size) >> 32,
            SizeForm::Words(_, size, _) => word(size),
        }
    }
}

impl Page {
    /// The page of a segment as it is now.
    pub(super) fn again(memory: &dyn Memory, segment: &Segment, page: &Self) -> Option<Self> {
        let mut words = [0; PAGE_WORDS];
        let at = Avma::new(page.at);
        match segment.records {
            Records::InSegment(form) => {
                let entry = words.get_mut(..usize::try_from(form.entry / 8).ok()?)?;
                let is_read = memory.read(at, entry);
                let read = is_read.then(|| Self::read(page.at, entry, form.page, page.start..page.end));
                read.flatten()
            }
            Records::ByMap => {
                let (words, _) = words.split_first_chunk_mut()?;
                let is_read = memory.read(at, words);
                let read = is_read.then(|| map::page(page.at, words, &(page.start..page.end)));
                read.flatten()
            }
        }
    }

    /// Returns the page, unless its record contradicts itself.
    fn read(at: u64, entry: &[u64], form: PageForm, range: Range<u64>) -> Option<Self> {
        let mut words = [0; PAGE_WORDS];
        words.get_mut(..entry.len())?.copy_from_slice(entry);
        let word = |index: usize| words.get(index).copied().unwrap_or_default();
        let (capacity, reserved) = (word(1) >> 16 & 0xffff, word(1) >> 32 & 0xffff);
        let all = range.end - range.start;
        let size = form.size_of(&words);
        let bytes = if size == HUGE_BLOCK && all > size {
            all
        } else {
            size
        };
        let fits = |start: u64| {
            let blocks = reserved
                .checked_mul(bytes)
                .and_then(|blocks| start.checked_add(blocks));
            blocks.is_some_and(|end| range.start <= start && end <= range.end)
        };
        let (used, start) = match form.size {
            SizeForm::Halves(used, starts) => {
                let before = starts.before(bytes);
                // As many blocks are reserved as there is room for.
                if all.checked_sub(before)? / bytes != reserved {
                    return None;
                }
                (word(used) & 0xffff_ffff, range.start + before)
            }
            SizeForm::Words(used, _, start) => (word(used) & 0xffff, word(start)),
        };
        let is_right = bytes.is_multiple_of(8) && capacity <= reserved && used <= capacity && fits(start);
        is_right.then(|| Self {
            at,
            start: range.start,
            end: range.end,
            row: Row {
                start,
                bytes,
                count: capacity,
            },
            used,
            free: word(form.free),
            local: word(form.local),
            thread: word(form.thread) & !3,
            keys: form.keys.map(|keys| [word(keys), word(keys + 1)]),
            heap: word(form.heap),
        })
    }
}
