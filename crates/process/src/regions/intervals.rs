//! Address ranges that do not overlap, each with a value. Taking a range out splits the pieces that it cuts.
//!
//! Pure, and independent of mappings.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

/// Disjoint, non-empty ranges with values. Neighbours are never joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervals<T> {
    /// End and value of each piece, by its start.
    pieces: BTreeMap<Avma, (Avma, T)>,
}

impl<T> Default for Intervals<T> {
    fn default() -> Self {
        Self {
            pieces: BTreeMap::new(),
        }
    }
}

impl<T: Copy> Intervals<T> {
    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// All pieces, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Range<Avma>, T)> + '_ {
        self.pieces
            .iter()
            .map(|(&start, &(end, value))| (start..end, value))
    }

    /// Value of the piece that contains an address.
    pub fn at(&self, address: Avma) -> Option<T> {
        let (_, &(end, value)) = self.pieces.range(..=address).next_back()?;
        (address < end).then_some(value)
    }

    /// True if all of `range` has values.
    pub fn covers(&self, range: &Range<Avma>) -> bool {
        let mut from = range.start;
        while from < range.end {
            match self.pieces.range(..=from).next_back() {
                Some((_, &(end, _))) if end > from => from = end,
                _ => return false,
            }
        }
        true
    }

    /// Takes out all of `range`; returns the parts that had values, ascending.
    pub fn take(&mut self, range: &Range<Avma>) -> Vec<(Range<Avma>, T)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.split(range.start);
        self.split(range.end);
        let starts: Vec<Avma> = self
            .pieces
            .range(range.clone())
            .map(|(&start, _)| start)
            .collect();
        let taken = starts
            .into_iter()
            .filter_map(|start| Some((start, self.pieces.remove(&start)?)));
        taken.map(|(start, (end, value))| (start..end, value)).collect()
    }

    /// Gives the free parts of `range` a value and leaves the others unchanged. Returns the parts that were
    /// free.
    pub fn fill(&mut self, range: &Range<Avma>, value: T) -> Vec<Range<Avma>> {
        let free = self.gaps(range);
        for part in &free {
            self.pieces.insert(part.start, (part.end, value));
        }
        free
    }

    /// Parts of `range` without a value, ascending.
    pub fn gaps(&self, range: &Range<Avma>) -> Vec<Range<Avma>> {
        let mut free = Vec::new();
        let mut from = range.start;
        for (inside, _) in self.within(range) {
            if inside.start > from {
                free.push(from..inside.start);
            }
            from = inside.end;
        }
        if from < range.end {
            free.push(from..range.end);
        }
        free
    }

    /// Parts of `range` with values, ascending.
    pub fn within(&self, range: &Range<Avma>) -> impl Iterator<Item = (Range<Avma>, T)> + use<'_, T> {
        let Range { start, end } = *range;
        let before = self.pieces.range(..start).next_back();
        let inside = self.pieces.range(start..end.max(start));
        let overlapping = before.into_iter().chain(inside);
        overlapping.filter_map(move |(&first, &(last, value))| {
            let part = first.max(start)..last.min(end);
            (!part.is_empty()).then_some((part, value))
        })
    }

    /// Splits the piece that contains `at`, if any, so that a piece starts there.
    fn split(&mut self, at: Avma) {
        let below = self.pieces.range_mut(..at).next_back();
        if let Some((_, (end, value))) = below
            && *end > at
        {
            let upper = (*end, *value);
            *end = at;
            self.pieces.insert(at, upper);
        }
    }
}
