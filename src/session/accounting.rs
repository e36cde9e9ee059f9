//! Accounts of what a trace counts: an allocator's blocks, mappings or pages. The rest of a running
//! trace asks at most whether allocators are probed.

pub(super) mod choice;
mod mappings;
pub(super) mod pages;
mod takes;

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::probes::AllocatorProbes;
use super::process::Process;
use super::roster::Roster;
use crate::bpf::collect::{Counters, EventQueue, RangeBytes, counter, outstanding_in_ranges};
use crate::bpf::{FaultWatch, Kernel};
use crate::process::Modules;
use crate::process::maps::MapsEntry;
use crate::process::memory::Tracks;
use crate::symbolize::Symbolizer;
use leak_report::model::{Amount, Snapshot, StackTotals, Vitals};

/// Maximum time to wait for events that are being written.
const MAX_WRITING: Duration = Duration::from_millis(100);

/// Accounts of one kind. Those of blocks are the kernel's totals; those of mappings and of pages are kept
/// here.
pub(super) trait Accounting {
    /// Returns whether allocators' functions are probed, or what announces their blocks.
    fn probes_allocators(&self) -> bool {
        false
    }

    /// Name of the traced events, for the log.
    fn subject(&self) -> &'static str;

    /// Parts of which outstanding amounts consist.
    fn tracks(&self) -> Tracks;

    /// Warning for a report without any call: possible causes and remedies. `growth`: what grows
    /// in a process nevertheless.
    fn nothing_seen(&self, probes: &AllocatorProbes, growth: Option<Growth>) -> String;

    /// Starts following what is counted, once walks have all that they need.
    fn start(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()>;

    /// Enters what happened since the last call.
    fn follow(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()>;

    /// Enters all that has happened by now, for a report.
    fn settle(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()>;

    /// Stops following.
    fn detach(&mut self) {}

    /// Outstanding bytes in ranges (ascending, disjoint) of each instance of `wanted`, in its order.
    fn outstanding_in(&self, kernel: &Kernel<'_>, wanted: &[(u32, Vec<Range<Avma>>)]) -> Vec<RangeBytes>;

    /// Adds these accounts to `snapshot`, which was read from the kernel.
    fn add_to(&self, snapshot: &mut Snapshot, instances: Instances<'_, '_>, names: Names<'_>);

    /// Progress, given that of the kernel's totals.
    fn vitals(&self, vitals: Vitals) -> Vitals {
        vitals
    }

    /// Ranges mapped since the attach, each with its instance, ascending: none if mappings are not counted.
    fn mapped(&self) -> Vec<(u32, Range<Avma>)> {
        Vec::new()
    }

    /// Number of pieces of mappings found unmapped although no call was seen that unmapped them.
    fn ends_not_seen(&self) -> u64 {
        0
    }
}

/// The traced instances, as accounts see them.
#[derive(Clone, Copy)]
pub(super) struct Instances<'a, 'obj> {
    pub(super) kernel: &'a Kernel<'obj>,
    pub(super) roster: &'a Roster,
    pub(super) events: &'a EventQueue,
}

impl Instances<'_, '_> {
    /// Maps of a running instance; `None` if it no longer has any.
    fn maps_of(&self, instance: u32) -> Option<Vec<MapsEntry>> {
        let process = self.roster.get(instance)?;
        let maps = process.target.as_ref()?.read_maps().ok()?;
        Some(maps).filter(|maps| self.is_in_slot(instance, process) && !maps.is_empty())
    }

    /// Follows the page faults of all running processes; with `children`, also of those that they start.
    fn watch_faults(&self, children: bool) -> anyhow::Result<FaultWatch> {
        let mut faults = FaultWatch::default();
        for process in self.roster.running() {
            let pid = process.facts.pid;
            self.kernel
                .watch_faults(&mut faults, pid, children)
                .with_context(|| {
                    format!("cannot follow the page faults of process {pid}: needs CAP_PERFMON; try sudo")
                })?;
        }
        Ok(faults)
    }

    /// Returns whether an instance still has its slot. If not, its process has executed another program, and
    /// what was read of it just before may not be the instance's.
    fn is_in_slot(&self, instance: u32, process: &Process) -> bool {
        let reading = self.kernel.publisher.begin_reading(process.instance.slot);
        reading.instance() == instance
    }

    /// Applies all events that have begun by now, by `apply`, which returns how many bytes of the queue it
    /// took. Returns whether that was possible: events are written in turn, and the thread whose turn it is
    /// may be waiting for a CPU.
    fn apply_begun(&self, mut apply: impl FnMut() -> usize) -> anyhow::Result<bool> {
        let waiting = self.kernel.waiting_region_bytes();
        let mut waiting = waiting.context("cannot ask for mapping calls and page faults that wait")?;
        let deadline = Instant::now() + MAX_WRITING;
        while waiting > 0 {
            let read = self.events.consume();
            read.context("cannot read mapping calls and page faults")?;
            waiting = waiting.saturating_sub(apply());
            if Instant::now() > deadline {
                return Ok(waiting == 0);
            }
        }
        Ok(true)
    }

    /// Reads how many mapping calls were missed, and the counters.
    fn missed_calls(&self) -> anyhow::Result<(u64, Counters)> {
        let counters = Counters::read(&self.kernel.recorded.counters).context("cannot read counters")?;
        let missed =
            counters.get(counter::COUNTER_LOST_REGION_EVENT) + self.kernel.missed_region_calls(&counters);
        Ok((missed, counters))
    }
}

/// Sources of the names of functions.
pub(super) struct Names<'a> {
    pub(super) modules: &'a Modules,
    pub(super) probes: &'a AllocatorProbes,
    pub(super) symbolizer: &'a mut Symbolizer,
}

/// Memory of a process that grows without a call of a probed function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// The allocator's: functions that are not probed allocate there.
    Allocator,
    /// Memory that the trace does not follow.
    Elsewhere,
}

/// Accounts of blocks, which the kernel side keeps.
struct BlockAccounts;

impl Accounting for BlockAccounts {
    fn probes_allocators(&self) -> bool {
        true
    }

    fn subject(&self) -> &'static str {
        "allocator functions"
    }

    fn tracks(&self) -> Tracks {
        Tracks::Blocks
    }

    fn nothing_seen(&self, probes: &AllocatorProbes, growth: Option<Growth>) -> String {
        if probes.are_announced() {
            return "the process announced no allocation: it is idle, or it has allocated too little for one \
                    to be chosen; --source uprobe traces every call"
                .to_owned();
        }
        let why = match growth {
            Some(Growth::Elsewhere) => {
                return "no call of a probed function was seen: other memory grows, see the memory breakdown of \
                        the report"
                    .to_owned();
            }
            Some(Growth::Allocator) => "the allocator's memory grows: the target",
            None => "the target is idle, or",
        };
        format!(
            "no call of a probed function was seen (probed: {}): {why} allocates by other functions; \
             name those with --alloc SYMBOL:SHAPE or, if only their names have a prefix, -S PREFIX; memleak doctor -p PID shows what was found",
            probes.names().join(", ")
        )
    }

    fn start(&mut self, _: Instances<'_, '_>) -> anyhow::Result<()> {
        Ok(())
    }

    fn follow(&mut self, _: Instances<'_, '_>) -> anyhow::Result<()> {
        Ok(())
    }

    fn settle(&mut self, _: Instances<'_, '_>) -> anyhow::Result<()> {
        Ok(())
    }

    fn outstanding_in(&self, kernel: &Kernel<'_>, wanted: &[(u32, Vec<Range<Avma>>)]) -> Vec<RangeBytes> {
        outstanding_in_ranges(kernel, wanted)
    }

    fn add_to(&self, _: &mut Snapshot, _: Instances<'_, '_>, _: Names<'_>) {}
}

/// Adds to `snapshot` the losses of its stacks and the causes of losses with a count above 0, and sets its
/// allocations and frees by its stacks.
fn count_events<const N: usize>(snapshot: &mut Snapshot, lost: Amount, causes: [(&'static str, u64); N]) {
    let losses = &mut snapshot.losses;
    losses.bytes = losses.bytes.saturating_add(lost.bytes);
    losses.blocks = losses.blocks.saturating_add(lost.blocks);
    for (cause, count) in causes.into_iter().filter(|(_, count)| *count > 0) {
        losses.causes.insert(cause.into(), count);
    }
    let blocks = |amount: fn(&StackTotals) -> u64| snapshot.stacks.iter().map(amount).sum::<u64>();
    let (allocations, frees) = (
        blocks(|stack| stack.allocated.amount.blocks),
        blocks(|stack| stack.freed.amount.blocks),
    );
    snapshot.events.allocations = allocations.saturating_add(snapshot.losses.blocks);
    snapshot.events.frees = frees;
}
