//! Ranges of addresses, ascending, taken from others.

use std::iter::Peekable;
use std::ops::Range;

use unwind_tables::addr::{Avma, contains};

/// Iterator over the parts of ranges that are in no range of another list.
pub(super) struct Without<A, B: Iterator> {
    from: A,
    /// Rest of the current range.
    rest: Option<Range<Avma>>,
    taken: Peekable<B>,
}

/// Subtracts `taken` from `from`. Both ascend; ranges of `from` do not overlap.
pub(super) fn without<A, B>(from: A, taken: B) -> Without<A::IntoIter, B::IntoIter>
where
    A: IntoIterator<Item = Range<Avma>>,
    B: IntoIterator<Item = Range<Avma>>,
{
    Without {
        from: from.into_iter(),
        rest: None,
        taken: taken.into_iter().peekable(),
    }
}

impl<A, B> Iterator for Without<A, B>
where
    A: Iterator<Item = Range<Avma>>,
    B: Iterator<Item = Range<Avma>>,
{
    type Item = Range<Avma>;

    fn next(&mut self) -> Option<Range<Avma>> {
        loop {
            let rest = self.rest.take().or_else(|| self.from.next())?;
            while self.taken.next_if(|taken| taken.end <= rest.start).is_some() {}
            let Some(taken) = self.taken.peek().filter(|taken| taken.start < rest.end) else {
                if rest.is_empty() {
                    continue;
                }
                return Some(rest);
            };
            let before = rest.start..taken.start;
            if taken.end < rest.end {
                self.rest = Some(taken.end..rest.end);
            }
            if !before.is_empty() {
                return Some(before);
            }
        }
    }
}

/// Returns the intersection of two lists of ranges, each ascending without overlap.
pub(super) fn common(one: &[Range<Avma>], other: &[Range<Avma>]) -> Vec<Range<Avma>> {
    let mut common = Vec::new();
    let (mut ones, mut others) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (ones.peek(), others.peek()) {
        let both = a.start.max(b.start)..a.end.min(b.end);
        if !both.is_empty() {
            common.push(both);
        }
        match a.end <= b.end {
            true => ones.next(),
            false => others.next(),
        };
    }
    common
}

/// Returns true if `address` is in one of `ranges`, which ascend.
pub(super) fn has(ranges: &[Range<Avma>], address: Avma) -> bool {
    let candidate = ranges.partition_point(|range| range.end <= address);
    ranges
        .get(candidate)
        .is_some_and(|range| contains(range, address))
}

/// Joins ranges, given in any order, to the fewest ascending ones.
pub(super) fn joined(mut ranges: Vec<Range<Avma>>) -> Vec<Range<Avma>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(of: &[bool]) -> Vec<Range<Avma>> {
        let mut ranges: Vec<Range<Avma>> = Vec::new();
        for (at, _) in (0..).zip(of).filter(|(_, is_in)| **is_in) {
            match ranges.last_mut() {
                Some(last) if last.end.get() == at => last.end = Avma::new(at + 1),
                Some(_) | None => ranges.push(Avma::new(at)..Avma::new(at + 1)),
            }
        }
        ranges
    }

    proptest! {
        /// Differences and intersections are right for each address, and no empty range is left.
        #[test]
        fn address_by_address(both in prop::collection::vec((any::<bool>(), any::<bool>()), 0..60)) {
            let (one, other): (Vec<bool>, Vec<bool>) = both.iter().copied().unzip();
            let expected: Vec<bool> = both.iter().map(|(one, other)| *one && !*other).collect();
            let left: Vec<_> = without(ranges(&one), ranges(&other)).collect();
            prop_assert_eq!(left, ranges(&expected));
            let expected: Vec<bool> = both.iter().map(|(one, other)| *one && *other).collect();
            prop_assert_eq!(common(&ranges(&one), &ranges(&other)), ranges(&expected));
        }
    }

    /// The end of a range is not in it, and may be the start of the next.
    #[test]
    fn addresses_of_ranges() {
        let ranges = [(2, 4), (4, 6), (8, 9)].map(|(start, end)| Avma::new(start)..Avma::new(end));
        let found: Vec<u64> = (0..10).filter(|&at| has(&ranges, Avma::new(at))).collect();
        assert_eq!(found, [2, 3, 4, 5, 8]);
        assert!(!has(&[], Avma::new(0)));
    }

    /// Ranges to take may overlap, and ranges to take from may touch.
    #[test]
    fn overlapping_ranges() {
        let range = |(start, end)| Avma::new(start)..Avma::new(end);
        let left = without(
            [(0, 10), (10, 20)].map(range),
            [(2, 8), (4, 5), (6, 12), (12, 12)].map(range),
        );
        assert_eq!(left.collect::<Vec<_>>(), [(0, 2), (12, 20)].map(range));
    }
}
