//! Comparison of known pages with resident ones.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::resident::{HugePages, PageState, Scan};
use super::table::{CHUNK_PAGES, Entries, Entry};
use super::{Pages, as_addresses};
use crate::maps::MapsEntry;
use crate::regions::intervals::Intervals;

/// Meaning of resident pages for which no fault was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// Pages that are older than the trace.
    Before,
    /// Lost pages: the kernel made them resident without a fault, or the fault was not recorded.
    Lost,
}

/// Maximum number of pages that are read at once: those of 1 GiB.
const BATCH_PAGES: u64 = 1 << 18;

/// Maximum size, in pages, of a mapping that is searched for unexplained pages. Of larger ones, only the
/// surroundings of known pages are read, for their huge pages.
const MAX_SEARCHED_PAGES: u64 = 1 << 22;

/// Pages to read, and whether they are searched for unexplained ones.
pub type ToRead = (Range<u64>, bool);

impl Pages {
    /// Begins to note changes: states that are read from now on prove nothing about changed pages.
    pub fn mark(&mut self) {
        self.changed = Some(Vec::new());
    }

    /// Returns all ranges to read for a complete comparison, in batches. `maps` are the process's own,
    /// ascending.
    pub fn batches(&self, maps: &[MapsEntry]) -> Vec<Vec<ToRead>> {
        let mut searched: Intervals<()> = Intervals::default();
        for entry in maps {
            let is_own = entry.inode == 0 || entry.writable;
            let length = entry.range.end.offset_from(entry.range.start);
            let pages = self.shift.pages(entry.range.start.get(), length);
            let is_small = pages.end - pages.start <= MAX_SEARCHED_PAGES;
            if !entry.shared && is_own && (entry.readable || entry.writable) && is_small {
                searched.fill(&as_addresses(&pages), ());
            }
        }
        let mut all: Vec<ToRead> = Vec::new();
        for first in self.table.firsts() {
            for gap in searched.gaps(&as_addresses(&(first..first + CHUNK_PAGES))) {
                let gap = gap.start.get()..gap.end.get();
                if self.table.within(&gap).next().is_some() {
                    all.push((gap, false));
                }
            }
        }
        let range = |range: Range<Avma>| range.start.get()..range.end.get();
        all.extend(searched.iter().map(|(pages, ())| (range(pages), true)));
        in_batches(all)
    }

    /// Compares with the states that were read since the mark, once all events up to the reading are applied.
    /// Ends the mark. Returns the number of pages that must be compared again: the kernel may not have
    /// handled their faults yet.
    pub fn settle(&mut self, scans: &[Scan], unexplained: Unexplained, huge: &mut HugePages) -> u64 {
        let changed = joined(self.changed.take().unwrap_or_default());
        huge.forget();
        let mut missed = 0;
        for scan in scans {
            let mut rest = Vec::new();
            let mut known = Known::default();
            for (index, (page, state)) in (scan.first..).zip(&scan.states).enumerate() {
                let entry = known.get(self, page);
                let is_own = state.is_own(huge.zero());
                if (entry == Entry::NONE && !is_own) || is_in(&changed, page) {
                    continue;
                }
                match entry {
                    Entry::NONE => {
                        let frame = frame_in_huge(&scan.states, index);
                        if scan.is_searched || frame.is_some() {
                            rest.push((page, frame));
                        }
                    }
                    entry => missed += u64::from(self.settle_known(page, entry, *state, is_own)),
                }
            }
            // Only now that all known pages of huge ones have been compared.
            let mut nearby = Nearby::default();
            for (page, frame) in rest {
                let around = frame.and_then(|frame| around(page, frame, huge));
                if !self.join_huge(page, around.as_ref(), &mut nearby) && scan.is_searched {
                    self.enter_unexplained(page, around.is_some(), unexplained);
                }
            }
        }
        missed
    }

    /// Returns true if the page must be compared again.
    fn settle_known(&mut self, page: u64, entry: Entry, state: PageState, is_own: bool) -> bool {
        let Some(stack) = entry.stack() else {
            if !is_own {
                self.table.set(page, Entry::NONE);
            }
            return false;
        };
        let is_counted = entry.counted().is_some();
        if is_own {
            if !is_counted {
                self.count(stack, 1);
            }
            self.table.set(page, entry.seen());
            return false;
        }
        if !entry.is_seen() && !state.is_present() && !entry.is_missed() {
            self.table.set(page, entry.missed());
            return true;
        }
        self.table.set(page, Entry::NONE);
        if entry.is_seen() {
            self.total(stack).gone += 1;
            self.ends_not_seen += u64::from(!entry.is_discarded());
        } else if is_counted {
            // It was never the process's own: it was only read, or the fault was an error of the program.
            self.take_back(stack);
        }
        false
    }

    /// Undoes [`Pages::count`] for a page that was never the process's own.
    fn take_back(&mut self, stack: u32) {
        let totals = self.total(stack);
        totals.touched = totals.touched.saturating_sub(1);
        totals.squares = totals.squares.saturating_sub(1);
    }

    /// Enters a resident page without a fault that is part of a huge page, `around`. It belongs to the stack
    /// that touched the huge page, or to the nearest of several (the kernel can join small pages into a huge
    /// one). Returns false if no stack has touched it.
    fn join_huge(&mut self, page: u64, around: Option<&Range<u64>>, nearby: &mut Nearby) -> bool {
        let Some(around) = around else {
            return false;
        };
        if !nearby.around.contains(&page) {
            *nearby = Nearby::of(around, self);
        }
        let Some((stack, squares)) = nearby.join(page) else {
            return false;
        };
        self.table.set(page, Entry::touched(stack, true).seen());
        let totals = self.total(stack);
        totals.touched += 1;
        totals.squares += squares;
        true
    }

    /// Enters a resident page for which no fault was seen.
    fn enter_unexplained(&mut self, page: u64, is_in_huge: bool, unexplained: Unexplained) {
        // The one fault of a huge page may have been at a page that is not chosen.
        let is_ours = self.choice.interval == 1 || !is_in_huge;
        if self.choice.is_chosen(page) && self.has_room(page) {
            self.table.set(page, Entry::BEFORE);
            self.unexplained += u64::from(unexplained == Unexplained::Lost && is_ours);
        }
    }
}

/// Pages of the huge page that contains `page`, whose frame is `frame`; `None` if no huge page does.
fn around(page: u64, frame: u64, huge: &mut HugePages) -> Option<Range<u64>> {
    let frames = huge.around(frame)?;
    let start = page.saturating_sub(frame - frames.start);
    Some(start..page + (frames.end - frame))
}

/// Frame of the page at `index`, if it can be part of a huge page: then its neighbour has the next frame, or
/// the one before.
fn frame_in_huge(states: &[PageState], index: usize) -> Option<u64> {
    let frame = states.get(index)?.frame()?;
    let neighbours = [index.checked_sub(1), index.checked_add(1)];
    let mut neighbours = neighbours.into_iter().flatten();
    let is_next = |index| {
        let of_neighbour = states.get(index).and_then(|state: &PageState| state.frame());
        of_neighbour.is_some_and(|other| other.abs_diff(frame) == 1)
    };
    neighbours.any(is_next).then_some(frame)
}

/// Entries of the chunk that was looked up last.
#[derive(Default)]
struct Known(Option<(u64, Option<Entries>)>);

impl Known {
    /// Entry of `page`, as of the first lookup in its chunk.
    fn get(&mut self, pages: &Pages, page: u64) -> Entry {
        let first = page - page % CHUNK_PAGES;
        let known = match &self.0 {
            Some((of, entries)) if *of == first => entries,
            _ => &self.0.insert((first, pages.table.chunk(first).copied())).1,
        };
        let index = usize::try_from(page - first).unwrap_or(0);
        known.map_or(Entry::NONE, |entries| entries[index])
    }
}

/// A huge page, and its touched pages.
#[derive(Default)]
struct Nearby {
    around: Range<u64>,
    touched: Vec<Touched>,
}

/// A page that a stack has touched.
struct Touched {
    page: u64,
    stack: u32,
    /// Pages that its fault has made resident, itself included.
    made: u64,
}

impl Nearby {
    fn of(around: &Range<u64>, pages: &Pages) -> Self {
        let known = pages.table.within(around);
        let touched = known.filter_map(|(page, entry)| {
            let stack = entry.stack()?;
            Some(Touched { page, stack, made: 1 })
        });
        Self {
            around: around.clone(),
            touched: touched.collect(),
        }
    }

    /// Joins a page to the nearest touched one. Returns that one's stack, and the growth of the square of its
    /// number of pages.
    fn join(&mut self, page: u64) -> Option<(u32, u64)> {
        let above = self.touched.partition_point(|touched| touched.page < page);
        let candidates = self
            .touched
            .get_mut(above.saturating_sub(1)..)?
            .iter_mut()
            .take(2);
        let nearest = candidates.min_by_key(|touched| touched.page.abs_diff(page))?;
        nearest.made += 1;
        // n² - (n - 1)² = 2n - 1.
        Some((nearest.stack, 2 * nearest.made - 1))
    }
}

/// Groups ranges in batches of at most [`BATCH_PAGES`], and splits those that are larger.
fn in_batches(all: Vec<ToRead>) -> Vec<Vec<ToRead>> {
    let mut batches: Vec<Vec<ToRead>> = Vec::new();
    let mut room = 0;
    for (mut pages, is_searched) in all {
        while !pages.is_empty() {
            if room == 0 {
                batches.push(Vec::new());
                room = BATCH_PAGES;
            }
            let end = pages.end.min(pages.start.saturating_add(room));
            room -= end - pages.start;
            if let Some(batch) = batches.last_mut() {
                batch.push((pages.start..end, is_searched));
            }
            pages.start = end;
        }
    }
    batches
}

/// Sorts ranges, and joins those that overlap.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

fn is_in(ranges: &[Range<u64>], page: u64) -> bool {
    let next = ranges.partition_point(|range| range.end <= page);
    ranges.get(next).is_some_and(|range| range.start <= page)
}
