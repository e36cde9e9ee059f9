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

/// The range of a merged list that holds `address`.
pub(crate) fn find(merged: &[Range<Svma>], address: Svma) -> Option<&Range<Svma>> {
    let after = merged.partition_point(|range| range.start <= address);
    let range = merged.get(after.checked_sub(1)?)?;
    addr::contains(range, address).then_some(range)
}
