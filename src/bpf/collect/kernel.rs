//! What kernel mode recorded, and what it missed.

use std::time::Duration;

use super::counters::{Counter, Counters};
use super::snapshot::take_recorded;
use crate::bpf::KernelTrace;
use leak_report::model::Snapshot;

/// The name of the loss of allocations that came while another was being recorded.
const NESTED: &str = "nested_event";

/// Reads everything that kernel mode recorded so far.
///
/// # Errors
///
/// The counters could not be read.
pub fn take_kernel(trace: &KernelTrace<'_>, elapsed: Duration) -> Result<Snapshot, libbpf_rs::Error> {
    // What was left out is read before what made up for it: so no event counts as lost that was not.
    let left_out = trace.left_out();
    let counters = Counters::read(&trace.recorded.counters)?;
    let lost = left_out
        .allocations
        .saturating_sub(counters.get(Counter::NestedAllocation));
    let mut snapshot = take_recorded(&trace.recorded, elapsed)?;
    let losses = &mut snapshot.losses;
    losses.frees = left_out.frees.saturating_sub(counters.get(Counter::NestedFree));
    losses.blocks = losses.blocks.saturating_add(lost);
    if lost > 0 {
        losses.causes.insert(NESTED.into(), lost);
    }
    snapshot.events.allocations = snapshot.events.allocations.saturating_add(lost);
    Ok(snapshot)
}
