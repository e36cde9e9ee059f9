//! Snapshots of kernel mode, with the events it missed.

use std::time::Duration;

use super::counters::{Counters, counter};
use super::snapshot::take_recorded;
use crate::bpf::KernelTrace;
use leak_report::model::{Snapshot, Source};

/// Name of the loss cause for allocations that occur while another is recorded.
const NESTED: &str = "nested_event";

/// Reads everything that kernel mode recorded so far.
pub fn take_kernel(trace: &KernelTrace<'_>, elapsed: Duration) -> Result<Snapshot, libbpf_rs::Error> {
    // Skipped events are read before the events that made up for them, so that the difference never counts an
    // event as lost that was not.
    let left_out = trace.left_out();
    let counters = Counters::read(&trace.recorded.counters)?;
    let lost = left_out
        .allocations
        .saturating_sub(counters.get(counter::COUNTER_NESTED_ALLOCATION));
    let mut snapshot = take_recorded(&trace.recorded, elapsed)?;
    snapshot.source = Source::Kernel;
    let losses = &mut snapshot.losses;
    losses.frees = left_out
        .frees
        .saturating_sub(counters.get(counter::COUNTER_NESTED_FREE));
    losses.blocks = losses.blocks.saturating_add(lost);
    if lost > 0 {
        losses.causes.insert(NESTED.into(), lost);
    }
    snapshot.events.allocations = snapshot.events.allocations.saturating_add(lost);
    Ok(snapshot)
}
