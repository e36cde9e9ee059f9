//! Breaks down the resident memory of each process (`crate::process::memory`): reads the data at the attach and for
//! each report.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::live::Live;
use crate::bpf::Origin;
use crate::bpf::collect::{RangeBytes, outstanding_in_ranges};
use crate::process::memory::{Live as LiveBytes, Sums, Tracks};
use leak_report::model::Snapshot;

/// Facts about a process's memory that are kept between readings.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Resident bytes of the allocator's mappings when the trace of the process began.
    at_attach: u64,
    /// Stack pointers by thread, from when the thread was last seen waiting.
    stack_pointers: BTreeMap<u32, Avma>,
}

impl Memory {
    /// Facts about a new instance. Memory that a forked one inherited is older than its trace.
    pub(super) fn of(origin: Origin) -> Self {
        let at_attach = match origin {
            Origin::Forked => u64::MAX,
            // `note_memory` sets that of an attached one when its probes are in place.
            Origin::Attached | Origin::Execed => 0,
        };
        Self {
            at_attach,
            stack_pointers: BTreeMap::new(),
        }
    }

    /// Updates the stack pointers. That of a running thread cannot be read: its last known one is kept.
    fn update(&mut self, threads: Vec<(u32, Option<Avma>)>) {
        let known = std::mem::take(&mut self.stack_pointers);
        let known = |thread: u32| known.get(&thread).copied();
        let pointers = threads.into_iter();
        self.stack_pointers = pointers
            .filter_map(|(thread, pointer)| Some((thread, pointer.or_else(|| known(thread))?)))
            .collect();
    }
}

/// Result of one reading.
struct Reading {
    sums: Sums,
    /// True if the address of everything outstanding is known.
    is_complete: bool,
}

impl Live<'_> {
    /// Records the resident memory when the trace of a process begins.
    pub(super) fn note_memory(&mut self, number: u32) {
        let reading = self.read_resident(number);
        if let (Some(reading), Some(process)) = (reading, self.processes.get_mut(&number)) {
            process.memory.at_attach = reading.sums.allocator;
        }
    }

    /// Sets the memory breakdown of each running process.
    pub(super) fn describe_memory(&mut self, snapshot: &Snapshot) {
        let live = self.processes.iter().filter(|(_, process)| process.is_live());
        for number in live.map(|(&number, _)| number).collect::<Vec<_>>() {
            let total = self.live_bytes(number, snapshot);
            let (reading, tracks) = (self.read_resident(number), self.tracks());
            if let Some(process) = self.processes.get_mut(&number) {
                let at_attach = process.memory.at_attach;
                process.facts.memory = reading.map(|Reading { sums, is_complete }| {
                    let live = match is_complete {
                        true => LiveBytes::ByMapping,
                        false => LiveBytes::Total(total),
                    };
                    sums.parts(tracks, live, at_attach)
                });
            }
        }
    }

    fn tracks(&self) -> Tracks {
        match (&self.regions, &self.pages) {
            (Some(_), _) => Tracks::Mappings,
            (None, Some(_)) => Tracks::Pages,
            (None, None) => Tracks::Blocks,
        }
    }

    /// Outstanding bytes of an instance. If it is the only one, all stacks are counted as its.
    fn live_bytes(&self, number: u32, snapshot: &Snapshot) -> u64 {
        let is_only = self.processes.len() == 1;
        let stacks = snapshot.stacks.iter();
        let of_instance = stacks.filter(|stack| stack.instance == number || is_only);
        of_instance
            .map(|stack| stack.outstanding().amount.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Reads the resident memory of a process; `None` if it has ended.
    fn read_resident(&mut self, number: u32) -> Option<Reading> {
        let process = self.processes.get_mut(&number)?;
        let target = process.target.as_ref()?;
        let mappings = target.read_smaps().ok()?;
        process.memory.update(target.stack_pointers());
        let pointers: Vec<Avma> = process.memory.stack_pointers.values().copied().collect();
        // Includes mappings without resident pages, which can hold outstanding blocks; pages can be in all.
        let is_of_pages = self.pages.is_some();
        let anonymous = mappings
            .iter()
            .filter(|mapping| mapping.entry.inode == 0 || is_of_pages);
        let ranges: Vec<Range<Avma>> = anonymous.map(|mapping| mapping.entry.range.clone()).collect();
        let RangeBytes { bytes, is_complete } = match (&self.regions, &self.pages) {
            (Some(ledger), _) => ledger.bytes_in_ranges(number, &ranges),
            (None, Some(ledger)) => ledger.bytes_in_ranges(number, &ranges),
            (None, None) => outstanding_in_ranges(&self.kernel, number, &ranges),
        };
        let live_in = |range: &Range<Avma>| {
            let at = ranges.binary_search_by_key(&range.start, |candidate| candidate.start);
            at.ok().and_then(|at| bytes.get(at).copied()).unwrap_or(0)
        };
        let sums = Sums::of(&mappings, &pointers, self.tracks(), live_in);
        Some(Reading { sums, is_complete })
    }
}
