//! Accounts mappings instead of blocks (`--mmap`): follows the mapping calls of each instance, and replaces
//! an allocator's totals by those of its mappings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::live::Live;
use super::process::Process;
use crate::allocator::{FUNCTIONS, Role};
use crate::bpf::collect::{Counter, Counters, MemoryEvent, RangeBytes, record_of, stack_of};
use crate::bpf::{Kernel, RegionWatch, monotonic_nanoseconds};
use crate::process::Module;
use crate::process::maps::MapsEntry;
use crate::process::regions::{RegionTotals, Regions};
use crate::symbolize::{CodeObject, Symbolizer};
use leak_report::model::{Amount, RegionKind, Snapshot, Source, StackTotals};

/// Maximum number of innermost frames searched for an allocator's function.
const ALLOCATOR_FRAMES: usize = 12;

/// Maximum readings of the maps for one report, while calls go on.
const MAX_READINGS: usize = 8;

/// Maximum time to wait for calls that are being written.
const MAX_WRITING: Duration = Duration::from_millis(100);

/// Addresses to compare with the processes' maps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Addresses that calls left in doubt.
    Doubtful,
    /// All addresses known to be mapped.
    All,
}

/// The mappings of all instances.
pub(super) struct Ledger {
    /// Mappings by instance.
    regions: BTreeMap<u32, Regions>,
    /// Maximum pieces per instance.
    capacity: usize,
    /// Calls that were missed, as of the last report.
    missed_calls: u64,
    /// Pieces found unmapped although no call was seen that unmapped them.
    ends_not_seen: u64,
    watch: Option<RegionWatch>,
}

impl Ledger {
    /// Creates an empty ledger, which follows no calls yet. `capacity` is the maximum number of pieces per
    /// instance.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            regions: BTreeMap::new(),
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            missed_calls: 0,
            ends_not_seen: 0,
            watch: None,
        }
    }

    /// Bytes of an instance's mappings in each of `ranges` (ascending, disjoint).
    pub(super) fn bytes_in_ranges(&self, instance: u32, ranges: &[Range<Avma>]) -> RangeBytes {
        let mut bytes = vec![0_u64; ranges.len()];
        let regions = self.regions.get(&instance);
        for (piece, _) in regions.iter().flat_map(|regions| regions.iter()) {
            let first = ranges.partition_point(|range| range.end <= piece.start);
            let overlapping = ranges.iter().zip(&mut bytes).skip(first);
            for (range, sum) in overlapping.take_while(|(range, _)| range.start < piece.end) {
                let (from, to) = (range.start.max(piece.start), range.end.min(piece.end));
                *sum = sum.saturating_add(to.offset_from(from));
            }
        }
        RangeBytes {
            bytes,
            is_complete: true,
        }
    }

    /// Number of calls, and the amount that is still mapped of what they mapped.
    pub(super) fn totals(&self) -> (u64, Amount) {
        let calls = self.regions.values().map(|regions| regions.events().calls);
        let pieces = self.regions.values().flat_map(Regions::iter);
        let live = pieces.map(|(range, _)| Amount {
            bytes: range.end.offset_from(range.start),
            blocks: 1,
        });
        (calls.sum(), live.sum())
    }

    /// Reads the mappings that an instance already has, if they can be read and are not known yet.
    fn enter_existing(&mut self, kernel: &Kernel<'_>, processes: &BTreeMap<u32, Process>, instance: u32) {
        let capacity = self.capacity;
        let entry = self.regions.entry(instance);
        let regions = entry.or_insert_with(|| Regions::new(capacity));
        if !regions.has_existing()
            && let Some(maps) = maps_of(kernel, processes, instance)
        {
            regions.enter_existing(&maps, monotonic_nanoseconds());
        }
    }

    /// Number of pieces found unmapped although no call was seen that unmapped them.
    pub(super) fn ends_not_seen(&self) -> u64 {
        self.ends_not_seen
    }

    /// Starts following mapping calls.
    pub(super) fn start(&mut self, kernel: &Kernel<'_>) -> anyhow::Result<()> {
        let watch = kernel.watch_regions().context(
            "cannot follow mapping calls: --mmap needs a kernel with CONFIG_FTRACE_SYSCALLS, and tracefs \
             (mount -t tracefs nodev /sys/kernel/tracing)",
        )?;
        self.watch = Some(watch);
        Ok(())
    }
}

/// Maps of a running instance; `None` if it no longer has any.
pub(super) fn maps_of(
    kernel: &Kernel<'_>,
    processes: &BTreeMap<u32, Process>,
    instance: u32,
) -> Option<Vec<MapsEntry>> {
    let process = processes.get(&instance)?;
    let maps = process.target.as_ref()?.read_maps().ok()?;
    // Checked afterwards: if the process has executed another program, the maps are not this instance's.
    let slot = process.instance.slot;
    let is_its_own = kernel.publisher.begin_reading(slot).instance() == instance;
    Some(maps).filter(|maps| is_its_own && !maps.is_empty())
}

impl Live<'_> {
    /// Records the present mappings of the processes as older than the trace: calls are followed from now on.
    pub(super) fn enter_existing_regions(&mut self) {
        let Some(ledger) = &mut self.regions else {
            return;
        };
        for &instance in self.processes.keys() {
            ledger.enter_existing(&self.kernel, &self.processes, instance);
        }
    }

    /// Applies the mapping calls since the last time, and resolves what they left in doubt.
    pub(super) fn follow_regions(&mut self) -> anyhow::Result<()> {
        self.apply_calls();
        self.settle_doubts(Scope::Doubtful)?;
        Ok(())
    }

    /// Applies the queued mapping calls. Returns how many bytes they took in the queue.
    fn apply_calls(&mut self) -> usize {
        let Some(ledger) = &mut self.regions else {
            return 0;
        };
        let events = self.events.take_memory_events();
        let calls = || {
            events.iter().filter_map(|event| match event {
                MemoryEvent::Call(call) => Some(call),
                // Faults are not traced.
                MemoryEvent::Fault(_) => None,
            })
        };
        let instances: BTreeSet<_> = calls().map(|call| call.instance).collect();
        for instance in instances {
            ledger.enter_existing(&self.kernel, &self.processes, instance);
        }
        for call in calls() {
            if let Some(regions) = ledger.regions.get_mut(&call.instance) {
                regions.apply(call);
            }
        }
        events.iter().map(MemoryEvent::queued_bytes).sum()
    }

    /// Compares the known mappings with the processes' maps, except where a call has changed them meanwhile.
    /// Returns the amount that turned out not to be mapped; `None` if nothing was compared.
    fn settle_doubts(&mut self, scope: Scope) -> anyhow::Result<Option<Amount>> {
        let Some(ledger) = &mut self.regions else {
            return Ok(None);
        };
        let mut read = Vec::new();
        for (&instance, regions) in &mut ledger.regions {
            let is_due = scope == Scope::All || regions.has_doubts();
            let maps = is_due.then(|| maps_of(&self.kernel, &self.processes, instance));
            let Some(maps) = maps.flatten() else {
                continue;
            };
            if scope == Scope::All {
                regions.doubt_all();
            }
            read.push((instance, regions.mark(), maps));
        }
        if read.is_empty() || !self.apply_begun(Self::apply_calls)? {
            return Ok(None);
        }
        let ledger = self.regions.iter_mut();
        let mut all = ledger.flat_map(|ledger| &mut ledger.regions);
        let settled = all.by_ref().filter_map(|(instance, regions)| {
            let (_, mark, maps) = read.iter().find(|(read, ..)| read == instance)?;
            Some(regions.settle(*mark, maps))
        });
        Ok(Some(settled.sum()))
    }

    /// Applies all events that have begun by now, by `apply`, which returns how many bytes of the queue it
    /// took. Returns whether that was possible: events are written in turn, and the thread whose turn it is
    /// may be waiting for a CPU.
    pub(super) fn apply_begun(&mut self, apply: impl Fn(&mut Self) -> usize) -> anyhow::Result<bool> {
        let waiting = self.kernel.waiting_region_bytes();
        let mut waiting = waiting.context("cannot ask for mapping calls and page faults that wait")?;
        let deadline = Instant::now() + MAX_WRITING;
        while waiting > 0 {
            let read = self.events.consume();
            read.context("cannot read mapping calls and page faults")?;
            waiting = waiting.saturating_sub(apply(self));
            if Instant::now() > deadline {
                return Ok(waiting == 0);
            }
        }
        Ok(true)
    }

    /// Applies all mapping calls up to now, and compares everything known to be mapped with the processes'
    /// maps. These make up for missed calls as far as they show what is no longer mapped. Returns how many
    /// calls were missed.
    pub(super) fn settle_regions(&mut self) -> anyhow::Result<u64> {
        if self.regions.is_none() {
            return Ok(0);
        }
        let events = self.events.wait(Duration::ZERO).context("cannot read events")?;
        self.react(&events)?;
        self.apply_calls();
        let counters = Counters::read(&self.kernel.recorded.counters).context("cannot read counters")?;
        let missed_calls =
            counters.get(Counter::LostRegionEvent) + self.kernel.missed_region_calls(&counters);
        self.settle_all_doubts()?;
        let gone = self.settle_doubts(Scope::All)?.unwrap_or_default();
        let Some(ledger) = &mut self.regions else {
            return Ok(0);
        };
        ledger.ends_not_seen += gone.blocks;
        let are_counted = missed_calls > ledger.missed_calls;
        if are_counted || gone.blocks > 0 {
            let unseen = if are_counted {
                format!("{missed_calls} mapping calls were not seen")
            } else {
                "unmapping calls were not seen, and not counted by the kernel".to_owned()
            };
            ledger.missed_calls = missed_calls;
            tracing::warn!(
                "{unseen}: {} B turned out to be unmapped; memory that was unmapped and mapped again \
                 meanwhile stays charged to the stack that mapped it first",
                gone.bytes
            );
        }
        Ok(missed_calls)
    }

    /// Compares with the processes' maps until they can resolve no more doubts.
    fn settle_all_doubts(&mut self) -> anyhow::Result<()> {
        for _ in 0..MAX_READINGS {
            if self.settle_doubts(Scope::Doubtful)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Ranges mapped since the attach, each with its instance.
    pub(super) fn all_regions(&self) -> Vec<(u32, Range<Avma>)> {
        let ledger = self.regions.iter();
        let all = ledger.flat_map(|ledger| &ledger.regions);
        all.flat_map(|(&instance, regions)| regions.iter().map(move |(range, _)| (instance, range)))
            .collect()
    }

    /// Warning for a report without any call: possible causes and remedies.
    pub(super) fn nothing_seen(&self) -> String {
        match self.regions {
            _ if self.pages.is_some() => {
                "no page fault was seen: the target has the memory that it needs, or is idle".to_owned()
            }
            None if self.probes.are_announced() => {
                "the process announced no allocation: it is idle, or it has allocated too little for one to be chosen; --source \
                 uprobe traces every call"
                    .to_owned()
            }
            None if self.grows_elsewhere() => {
                "no call of a probed function was seen: other memory grows, see the memory breakdown of the \
                 report".to_owned()
            }
            None => format!(
                "no call of a probed function was seen (probed: {}): the target is idle, or allocates by \
                 other functions; name those with --alloc SYMBOL:SHAPE or, if only their names have a \
                 prefix, -S PREFIX; memleak doctor -p PID shows what was found",
                self.probes.names().join(", ")
            ),
            Some(_) => "no mapping call was seen: the target has what it needs, or is idle".to_owned(),
        }
    }

    /// Adds the totals of mappings to `snapshot`, which has only losses.
    pub(super) fn add_regions(&self, snapshot: &mut Snapshot, symbolizer: &mut Symbolizer) {
        let Some(ledger) = &self.regions else {
            return;
        };
        snapshot.source = Source::Syscall;
        for (&instance, regions) in &ledger.regions {
            let maps = maps_of(&self.kernel, &self.processes, instance).unwrap_or_default();
            let mut known = HashMap::new();
            let is_allocators = |stack| {
                *known
                    .entry(stack)
                    .or_insert_with(|| self.is_allocators(instance, stack, symbolizer))
            };
            let mut by_record: BTreeMap<(u32, RegionKind), RegionTotals> = BTreeMap::new();
            for ((stack, kind), totals) in regions.totals(&maps, is_allocators) {
                *by_record
                    .entry((record_of(&self.kernel, stack), kind))
                    .or_default() += totals;
            }
            for ((record, kind), totals) in by_record {
                let shape = stack_of(&self.kernel, record);
                snapshot
                    .stacks
                    .extend(shape.map(|shape| with_totals(shape, kind, totals)));
            }
            let events = regions.events();
            let sum = &mut snapshot.events;
            sum.probe_hits += events.calls;
            sum.failed += events.failed;
            sum.unknown_frees += events.unknown;
        }
        add_lost(snapshot);
        let in_doubt: usize = ledger.regions.values().map(Regions::in_doubt).sum();
        let causes = [
            ("region_calls_not_seen", ledger.missed_calls),
            ("region_ends_not_seen", ledger.ends_not_seen),
            ("regions_in_doubt", u64::try_from(in_doubt).unwrap_or(u64::MAX)),
        ];
        count_events(snapshot, causes);
    }

    /// Returns whether a stack is that of an allocator taking memory from the kernel: one of its innermost
    /// frames is an allocator's function, or the mapping call was made by a library that is an allocator.
    fn is_allocators(&self, instance: u32, stack: u32, symbolizer: &mut Symbolizer) -> bool {
        let (Some(process), Some(stack)) = (self.processes.get(&instance), stack_of(&self.kernel, stack))
        else {
            return false;
        };
        let mut wrapper = None;
        for (depth, frame) in stack.frames.iter().take(ALLOCATOR_FRAMES).enumerate() {
            let lookup = frame.pc.wrapping_sub(u64::from(!frame.exact));
            let found = process.history.resolve(stack.epoch, lookup);
            let Some((module, svma)) = found.and_then(|(id, svma)| Some((self.modules.get(id)?, svma)))
            else {
                continue;
            };
            let object = CodeObject {
                key: module.id.index(),
                path: &module.path,
                bytes: module.bytes(),
            };
            let svma = svma.wrapping_add(frame.pc.offset_from(lookup));
            let names = symbolizer.symbolize(object, svma, frame.exact);
            if names
                .symbol
                .as_ref()
                .is_some_and(|symbol| is_allocator(&symbol.name))
            {
                return true;
            }
            // Frame 0 is in the library with the system call's wrapper, frame 1 in the one that called it.
            match depth {
                0 => wrapper = Some(module.id),
                1 if wrapper != Some(module.id) && self.is_allocator_library(process, module) => return true,
                _ => {}
            }
        }
        false
    }

    fn is_allocator_library(&self, process: &Process, module: &Module) -> bool {
        let is_program = process.facts.exe.as_ref().is_some_and(|exe| *exe == module.path);
        !is_program && self.probes.any(std::iter::once(module.id))
    }
}

/// Adds to the losses the mappings for which the ledger had no room.
fn add_lost(snapshot: &mut Snapshot) {
    let of_mappings = snapshot.stacks.iter().filter(|stack| stack.kind.is_some());
    let lost: Amount = of_mappings.map(|stack| stack.lost).sum();
    let losses = &mut snapshot.losses;
    losses.bytes = losses.bytes.saturating_add(lost.bytes);
    losses.blocks = losses.blocks.saturating_add(lost.blocks);
    if lost.blocks > 0 {
        losses.causes.insert("region_table_full".into(), lost.blocks);
    }
}

fn with_totals(shape: StackTotals, kind: RegionKind, totals: RegionTotals) -> StackTotals {
    let RegionTotals {
        mapped,
        unmapped,
        lost,
    } = totals;
    StackTotals {
        allocated: (mapped + unmapped).into(),
        freed: unmapped.into(),
        lost,
        kind: Some(kind),
        ..shape
    }
}

/// Returns whether a symbol names an allocating function. Allocators export these under several names; from
/// 2.42 on, glibc's `malloc` jumps to `__libc_malloc2`, and has no frame of its own.
fn is_allocator(symbol: &str) -> bool {
    let plain = match symbol.strip_prefix("__libc_") {
        Some(plain) => plain.strip_suffix('2').unwrap_or(plain),
        None => symbol,
    };
    let mut allocating = FUNCTIONS.iter().filter(|function| function.role != Role::Free);
    plain.starts_with("operator new") || allocating.any(|function| function.name == plain)
}

/// Adds to `snapshot` the causes of losses with a count above 0, and sets its allocations and frees by its
/// stacks.
pub(super) fn count_events<const N: usize>(snapshot: &mut Snapshot, causes: [(&'static str, u64); N]) {
    for (cause, count) in causes.into_iter().filter(|(_, count)| *count > 0) {
        snapshot.losses.causes.insert(cause.into(), count);
    }
    let blocks = |amount: fn(&StackTotals) -> u64| snapshot.stacks.iter().map(amount).sum::<u64>();
    let (allocations, frees) = (
        blocks(|stack| stack.allocated.amount.blocks),
        blocks(|stack| stack.freed.amount.blocks),
    );
    snapshot.events.allocations = allocations.saturating_add(snapshot.losses.blocks);
    snapshot.events.frees = frees;
}
