//! State of a running trace, read in place: without blocks, without names. Takes a millisecond, mostly less.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counters::Counters;
use super::counts::hits;
use super::snapshot::losses;
use super::totals;
use crate::bpf::Recorded;
use crate::bpf::types::limits;
use leak_report::model::Vitals;

/// Reads the state, except for mappings, which are accounted elsewhere.
pub(crate) fn vitals(recorded: &Recorded, elapsed: Duration) -> Result<Vitals, libbpf_rs::Error> {
    let counters = Counters::read(&recorded.counters)?;
    let used = recorded.usage.words().first();
    let used = used.map_or(0, |word| word.load(Ordering::Acquire));
    let used = u32::try_from(used)
        .unwrap_or(u32::MAX)
        .min(recorded.stack_capacity);
    let stored = (0..used).filter_map(|index| totals::read(recorded, index));
    let found = recorded.finished();
    let found = found.all(|index| recorded.sums_of(index));
    let found_later = found.iter().map(|stack| totals::decode(recorded, &stack.sums));
    let live = stored
        .chain(found_later)
        .map(|stack| stack.allocated.amount.less(stack.freed.amount))
        .sum();
    Ok(Vitals {
        elapsed,
        calls: hits(recorded)?.entries,
        live,
        stacks: u64::from(used.saturating_sub(limits::FIRST_STACK.0)) + found.len() as u64,
        lost: losses(&counters).blocks,
    })
}
