//! Pages that a process holds, asked about for ranges that mostly ascend.

use std::ops::Range;

use unwind_tables::addr::Avma;

use memleak_base::pages;

/// Runs that are gone through one by one before the rest is searched.
const NEAR: usize = 8;

/// Runs of pages, and the place of the last question.
pub(super) struct Held<'a> {
    runs: &'a [Range<Avma>],
    at: usize,
}

impl<'a> Held<'a> {
    /// Takes runs that ascend, apart from each other.
    pub(super) fn new(runs: &'a [Range<Avma>]) -> Self {
        Self { runs, at: 0 }
    }

    /// Bytes of a range that are on held pages.
    pub(super) fn bytes(&mut self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        self.seek(range.start);
        let runs = self.runs.get(self.at..).unwrap_or_default();
        let within = runs.iter().take_while(|run| run.start.get() < range.end);
        within
            .map(|run| run.end.get().min(range.end) - run.start.get().max(range.start))
            .sum()
    }

    /// Goes to the first run that ends behind `address`.
    fn seek(&mut self, address: u64) {
        let is_before = |run: &Range<Avma>| run.end.get() <= address;
        let is_behind = |run: &Range<Avma>| !is_before(run);
        if self
            .at
            .checked_sub(1)
            .and_then(|last| self.runs.get(last))
            .is_some_and(is_behind)
        {
            self.at = 0;
        }
        let runs = self.runs.get(self.at..).unwrap_or_default();
        let near = runs.iter().take(NEAR).take_while(|run| is_before(run)).count();
        self.at += match near {
            NEAR => runs.partition_point(is_before),
            near => near,
        };
    }
}

/// The whole pages in a range; an empty range if there is none.
pub(super) fn pages_within(range: &Range<u64>) -> Range<u64> {
    let size = pages::bytes();
    let start = range.start.checked_next_multiple_of(size).unwrap_or(range.end);
    let end = range.end / size * size;
    start..end.max(start)
}
