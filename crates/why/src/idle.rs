//! Memory that is held without use, although it does not grow.

use leak_report::model::Amount;
use leak_report::model::diagnosis::{Cause, CauseKind, Certainty};

use crate::observed::Observed;
use crate::region::Region;
use crate::words;

/// Memory that is worth a line is at least a tenth of all.
const LEAST_PART: u64 = 10;
/// Minimum bytes that are worth a line.
const MIN_BYTES: u64 = 4 << 20;

/// Memory without use of kinds that are not among the `causes` already, largest first.
pub(crate) fn of(observed: &Observed, causes: &[Cause]) -> Vec<Cause> {
    let Some(last) = observed.readings.last() else {
        return Vec::new();
    };
    let heap = observed.heap.as_ref().map(|[_, last]| last);
    let found = [
        (CauseKind::Pinned, heap.map_or(0, |heap| heap.pinned)),
        (CauseKind::FreeInAllocator, heap.map_or(0, |heap| heap.free)),
        (CauseKind::ThreadStacks, last.bytes.get(Region::EndedStacks)),
        (CauseKind::Stack, last.bytes.get(Region::MainStack)),
        (CauseKind::HugePages, last.bytes.get(Region::HugePages)),
    ];
    let least = MIN_BYTES.max(last.bytes.all() / LEAST_PART);
    let mut idle: Vec<_> = found
        .into_iter()
        .filter(|(kind, bytes)| *bytes >= least && causes.iter().all(|cause| cause.kind != *kind))
        .collect();
    idle.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let cause = |(kind, bytes)| Cause {
        kind,
        share: 0.0,
        bytes_per_second: 0.0,
        amount: Amount { bytes, blocks: 0 },
        certainty: Certainty::Certain,
        site: None,
        holder: None,
        meaning: words::idle(kind),
        next: match heap {
            Some(heap) if matches!(kind, CauseKind::Pinned | CauseKind::FreeInAllocator) => {
                words::of_heap(kind, heap)
            }
            Some(_) | None => words::of_region(kind),
        },
    };
    idle.into_iter().map(cause).collect()
}
