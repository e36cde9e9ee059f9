//! Accounts of mappings (`--mmap`): follows the mapping calls of each instance.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::{Accounting, Growth, Instances, Names, count_events};
use crate::allocator::{FUNCTIONS, Role};
use crate::bpf::collect::{MemoryEvent, RangeBytes, record_of, stack_of};
use crate::bpf::{Kernel, RegionWatch, monotonic_nanoseconds};
use crate::process::Module;
use crate::process::memory::Tracks;
use crate::process::regions::{RegionTotals, Regions};
use crate::session::config::TraceConfig;
use crate::session::probes::AllocatorProbes;
use crate::session::process::Process;
use crate::symbolize::CodeObject;
use leak_report::model::{Amount, RegionKind, Snapshot, Source, StackTotals, Vitals};

/// Maximum number of innermost frames searched for an allocator's function.
const ALLOCATOR_FRAMES: usize = 12;

/// Maximum readings of the maps for one report, while calls go on.
const MAX_READINGS: usize = 8;

/// Maximum pieces of mappings per process: by default the kernel allows 65,530 (vm.max_map_count), but merges
/// neighbours that are alike. Some 100 MB.
const MAX_REGIONS: u32 = 1 << 20;

/// Addresses to compare with the processes' maps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Addresses that calls left in doubt.
    Doubtful,
    /// All addresses known to be mapped.
    All,
}

/// The mappings of all instances.
pub(super) struct MappingAccounts {
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

impl MappingAccounts {
    /// Empty accounts, which follow no calls yet.
    pub(super) fn new(config: &TraceConfig) -> Self {
        let capacity = config.limits.blocks.unwrap_or(MAX_REGIONS);
        Self {
            regions: BTreeMap::new(),
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            missed_calls: 0,
            ends_not_seen: 0,
            watch: None,
        }
    }

    /// Bytes of an instance's mappings in each of `ranges` (ascending, disjoint).
    fn bytes_in_ranges(&self, instance: u32, ranges: &[Range<Avma>]) -> RangeBytes {
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

    /// Reads the mappings that an instance already has, if they can be read and are not known yet.
    fn enter_existing(&mut self, instances: Instances<'_, '_>, instance: u32) {
        let capacity = self.capacity;
        let entry = self.regions.entry(instance);
        let regions = entry.or_insert_with(|| Regions::new(capacity));
        if !regions.has_existing()
            && let Some(maps) = instances.maps_of(instance)
        {
            regions.enter_existing(&maps, monotonic_nanoseconds());
        }
    }

    /// Applies the queued mapping calls. Returns how many bytes they took in the queue.
    fn apply_calls(&mut self, instances: Instances<'_, '_>) -> usize {
        let events = instances.events.take_memory_events();
        let calls = || {
            events.iter().filter_map(|event| match event {
                MemoryEvent::Call(call) => Some(call),
                // Neither is traced.
                MemoryEvent::Fault(_) | MemoryEvent::Take(_) => None,
            })
        };
        let called: BTreeSet<_> = calls().map(|call| call.instance).collect();
        for instance in called {
            self.enter_existing(instances, instance);
        }
        for call in calls() {
            if let Some(regions) = self.regions.get_mut(&call.instance) {
                regions.apply(call);
            }
        }
        events.iter().map(MemoryEvent::queued_bytes).sum()
    }

    /// Compares the known mappings with the processes' maps, except where a call has changed them meanwhile.
    /// Returns the amount that turned out not to be mapped; `None` if nothing was compared.
    fn settle_doubts(
        &mut self,
        instances: Instances<'_, '_>,
        scope: Scope,
    ) -> anyhow::Result<Option<Amount>> {
        let mut read = Vec::new();
        for (&instance, regions) in &mut self.regions {
            let is_due = scope == Scope::All || regions.has_doubts();
            let Some(maps) = is_due.then(|| instances.maps_of(instance)).flatten() else {
                continue;
            };
            if scope == Scope::All {
                regions.doubt_all();
            }
            read.push((instance, regions.mark(), maps));
        }
        if read.is_empty() || !instances.apply_begun(|| self.apply_calls(instances))? {
            return Ok(None);
        }
        let settled = self.regions.iter_mut().filter_map(|(instance, regions)| {
            let (_, mark, maps) = read.iter().find(|(read, ..)| read == instance)?;
            Some(regions.settle(*mark, maps))
        });
        Ok(Some(settled.sum()))
    }

    /// Compares with the processes' maps until they can resolve no more doubts.
    fn settle_all_doubts(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        for _ in 0..MAX_READINGS {
            if self.settle_doubts(instances, Scope::Doubtful)?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

impl Accounting for MappingAccounts {
    fn subject(&self) -> &'static str {
        "mapping calls, not allocator functions"
    }

    fn tracks(&self) -> Tracks {
        Tracks::Mappings
    }

    fn nothing_seen(&self, _: &AllocatorProbes, _: Option<Growth>) -> String {
        "no mapping call was seen: the target has what it needs, or is idle".to_owned()
    }

    /// Records the present mappings of the processes as older than the trace: calls are followed from now on.
    fn start(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        let watch = instances.kernel.watch_regions().context(
            "cannot follow mapping calls: --mmap needs a kernel with CONFIG_FTRACE_SYSCALLS, and tracefs \
             (mount -t tracefs nodev /sys/kernel/tracing)",
        )?;
        self.watch = Some(watch);
        for instance in instances.roster.numbers() {
            self.enter_existing(instances, instance);
        }
        Ok(())
    }

    fn follow(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        self.apply_calls(instances);
        self.settle_doubts(instances, Scope::Doubtful).map(drop)
    }

    /// Compares everything known to be mapped with the processes' maps as well. These make up for missed
    /// calls as far as they show which memory is no longer mapped.
    fn settle(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        self.apply_calls(instances);
        let (missed_calls, _) = instances.missed_calls()?;
        self.settle_all_doubts(instances)?;
        let gone = self.settle_doubts(instances, Scope::All)?.unwrap_or_default();
        self.ends_not_seen += gone.blocks;
        let are_counted = missed_calls > self.missed_calls;
        if are_counted || gone.blocks > 0 {
            let unseen = if are_counted {
                format!("{missed_calls} mapping calls were not seen")
            } else {
                "unmapping calls were not seen, and not counted by the kernel".to_owned()
            };
            self.missed_calls = missed_calls;
            tracing::warn!(
                "{unseen}: {} B turned out to be unmapped; memory that was unmapped and mapped again \
                 meanwhile stays charged to the stack that mapped it first",
                gone.bytes
            );
        }
        Ok(())
    }

    fn outstanding_in(&self, _: &Kernel<'_>, wanted: &[(u32, Vec<Range<Avma>>)]) -> Vec<RangeBytes> {
        let each = wanted.iter();
        each.map(|(instance, ranges)| self.bytes_in_ranges(*instance, ranges))
            .collect()
    }

    /// `snapshot` has only losses before.
    fn add_to(&self, snapshot: &mut Snapshot, instances: Instances<'_, '_>, mut names: Names<'_>) {
        let Instances { kernel, roster, .. } = instances;
        snapshot.source = Source::Syscall;
        for (&instance, regions) in &self.regions {
            let maps = instances.maps_of(instance).unwrap_or_default();
            let mut known = HashMap::new();
            let is_allocators = |stack| {
                *known.entry(stack).or_insert_with(|| {
                    let (process, stack) = (roster.get(instance), stack_of(kernel, stack));
                    process
                        .zip(stack)
                        .is_some_and(|(process, stack)| is_allocators(process, &stack, &mut names))
                })
            };
            let mut by_record: BTreeMap<(u32, RegionKind), RegionTotals> = BTreeMap::new();
            for ((stack, kind), totals) in regions.totals(&maps, is_allocators) {
                *by_record.entry((record_of(kernel, stack), kind)).or_default() += totals;
            }
            for ((record, kind), totals) in by_record {
                let shape = stack_of(kernel, record);
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
        let of_mappings = snapshot.stacks.iter().filter(|stack| stack.kind.is_some());
        let lost: Amount = of_mappings.map(|stack| stack.lost).sum();
        let in_doubt: usize = self.regions.values().map(Regions::in_doubt).sum();
        let causes = [
            ("region_table_full", lost.blocks),
            ("region_calls_not_seen", self.missed_calls),
            ("region_ends_not_seen", self.ends_not_seen),
            ("regions_in_doubt", u64::try_from(in_doubt).unwrap_or(u64::MAX)),
        ];
        count_events(snapshot, lost, causes);
    }

    fn vitals(&self, vitals: Vitals) -> Vitals {
        let calls = self.regions.values().map(|regions| regions.events().calls);
        let pieces = self.regions.values().flat_map(Regions::iter);
        let live = pieces.map(|(range, _)| Amount {
            bytes: range.end.offset_from(range.start),
            blocks: 1,
        });
        Vitals {
            calls: calls.sum(),
            live: live.sum(),
            ..vitals
        }
    }

    fn mapped(&self) -> Vec<(u32, Range<Avma>)> {
        let all = self.regions.iter();
        all.flat_map(|(&instance, regions)| regions.iter().map(move |(range, _)| (instance, range)))
            .collect()
    }

    fn ends_not_seen(&self) -> u64 {
        self.ends_not_seen
    }
}

/// Returns whether a stack is that of an allocator taking memory from the kernel: one of its innermost
/// frames is an allocator's function, or the mapping call was made by a library that is an allocator.
fn is_allocators(process: &Process, stack: &StackTotals, names: &mut Names<'_>) -> bool {
    let mut wrapper = None;
    for (depth, frame) in stack.frames.iter().take(ALLOCATOR_FRAMES).enumerate() {
        let lookup = frame.pc.wrapping_sub(u64::from(!frame.exact));
        let found = process.history.resolve(stack.epoch, lookup);
        let Some((module, svma)) = found.and_then(|(id, svma)| Some((names.modules.get(id)?, svma))) else {
            continue;
        };
        let object = CodeObject {
            key: module.id.index(),
            path: &module.path,
            bytes: module.bytes(),
        };
        let svma = svma.wrapping_add(frame.pc.offset_from(lookup));
        let named = names.symbolizer.symbolize(object, svma, frame.exact);
        if named
            .symbol
            .as_ref()
            .is_some_and(|symbol| is_allocator(&symbol.name))
        {
            return true;
        }
        // Frame 0 is in the library with the system call's wrapper, frame 1 in the one that called it.
        match depth {
            0 => wrapper = Some(module.id),
            1 if wrapper != Some(module.id) && is_allocator_library(process, module, names.probes) => {
                return true;
            }
            _ => {}
        }
    }
    false
}

fn is_allocator_library(process: &Process, module: &Module, probes: &AllocatorProbes) -> bool {
    let is_program = process.facts.exe.as_ref().is_some_and(|exe| *exe == module.path);
    !is_program && probes.any(std::iter::once(module.id))
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
