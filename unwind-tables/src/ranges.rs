//! Sorted lists of address ranges.

use std::ops::Range;

use crate::addr::{self, Svma};

/// Sorts ranges and joins those that touch; empty ones are dropped.
pub(crate) fn merge(ranges: impl IntoIterator<Item = Range<Svma>>) -> Vec<Range<Svma>> {
    let mut sorted: Vec<_> = ranges
        .into_iter()
        .filter(|range| range.start < range.end)
        .collect();
    sorted.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<Svma>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            Some(_) | None => merged.push(range),
        }
    }
    merged
}

/// Returns the range of a merged list that holds `address`.
pub(crate) fn find(merged: &[Range<Svma>], address: Svma) -> Option<&Range<Svma>> {
    let after = merged.partition_point(|range| range.start <= address);
    let range = merged.get(after.checked_sub(1)?)?;
    addr::contains(range, address).then_some(range)
}

/// Returns the parts of merged ranges that no `taken` range covers. `taken` must ascend.
pub(crate) fn without<'a>(
    merged: &[Range<Svma>],
    taken: impl Iterator<Item = &'a Range<Svma>>,
) -> Vec<Range<Svma>> {
    let mut left = Vec::new();
    let mut taken = taken.peekable();
    for range in merged {
        let mut start = range.start;
        while let Some(next) = taken.peek() {
            if next.start > start && start < range.end {
                left.push(start..next.start.min(range.end));
            }
            start = start.max(next.end);
            if next.end > range.end {
                break;
            }
            taken.next();
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result holds exactly the addresses of the ranges that no taken range covers.
    #[test]
    fn without_removes_the_taken_ranges() {
        let list = |ranges: &[(u64, u64)]| -> Vec<_> {
            ranges
                .iter()
                .map(|&(start, end)| Svma::new(start)..Svma::new(end))
                .collect()
        };
        for (merged, taken, left) in [
            (&[(10, 20)][..], &[][..], &[(10, 20)][..]),
            (&[(10, 20)], &[(10, 20)], &[]),
            (&[(10, 20)], &[(0, 12), (15, 16), (18, 30)], &[(12, 15), (16, 18)]),
            (&[(10, 20), (30, 40)], &[(12, 35)], &[(10, 12), (35, 40)]),
            (
                &[(10, 20), (30, 40)],
                &[(0, 5), (22, 25), (50, 60)],
                &[(10, 20), (30, 40)],
            ),
            (
                &[(10, 20), (30, 40)],
                &[(10, 11), (39, 40)],
                &[(11, 20), (30, 39)],
            ),
        ] {
            assert_eq!(
                without(&list(merged), list(taken).iter()),
                list(left),
                "{merged:?} {taken:?}"
            );
        }
    }
}
