//! Portions of mappings, each of one kind. Most mappings are one portion. The kernel makes one mapping of two
//! that touch and have the same rights, whatever they are for: such a mapping has several.

use std::ops::Range;

use memleak_base::pages;
use unwind_tables::addr::Avma;

use super::contents::{Contents, MOST_PAGES};
use super::kind::Kind;
use crate::smaps::{Amounts, Resident};

/// Maximum number of pages of one portion whose states are read: those of 4 GiB.
const MOST_COUNTED: u64 = 1 << 20;

/// Part of a mapping, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Index of the mapping.
    pub mapping: usize,
    pub range: Range<Avma>,
    pub kind: Kind,
    pub amounts: Amounts,
}

/// Divides a mapping at the ends of `parts`, which ascend within it; `rest` is the kind between them. Amounts
/// are the mapping's, divided like the resident pages: they add up to the mapping's.
pub(super) fn divide(
    contents: &dyn Contents,
    (index, mapping): (usize, &Resident),
    parts: &[(Range<u64>, Kind)],
    rest: Kind,
) -> Vec<Portion> {
    let whole = mapping.entry.range.start.get()..mapping.entry.range.end.get();
    let mut divided: Vec<(Range<u64>, Kind)> = Vec::new();
    let mut at = whole.start;
    for (range, kind) in parts {
        let range = range.start.max(at)..range.end.min(whole.end);
        if range.is_empty() {
            continue;
        }
        if at < range.start {
            divided.push((at..range.start, rest));
        }
        at = range.end;
        divided.push((range, *kind));
    }
    if at < whole.end {
        divided.push((at..whole.end, rest));
    }
    let counts = match divided.as_slice() {
        [_] => vec![1],
        divided => divided
            .iter()
            .map(|(range, _)| resident(contents, range))
            .collect(),
    };
    let sum: u64 = counts.iter().sum();
    let mut left = mapping.amounts;
    let all = left;
    let last = divided.len().saturating_sub(1);
    let portions = divided.into_iter().zip(counts).enumerate();
    let portions = portions.map(|(number, ((range, kind), count))| {
        let amounts = match number == last {
            true => left,
            false => left.take(&all, (count, sum), range.end - range.start),
        };
        Portion {
            mapping: index,
            range: Avma::new(range.start)..Avma::new(range.end),
            kind,
            amounts,
        }
    });
    portions.collect()
}

/// Number of resident pages of a range; of a huge one, an estimate by its beginning.
fn resident(contents: &dyn Contents, range: &Range<u64>) -> u64 {
    let all = (range.end - range.start) / pages::bytes();
    let counted = all.min(MOST_COUNTED);
    let mut count = 0;
    let mut seen = 0;
    while seen < counted {
        let now = (counted - seen).min(MOST_PAGES as u64);
        let address = range.start + seen * pages::bytes();
        count += contents.resident(address, usize::try_from(now).unwrap_or(0)) as u64;
        seen += now;
    }
    match all / counted.max(1) {
        0 | 1 => count,
        times => count.saturating_mul(times),
    }
}
