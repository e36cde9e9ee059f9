//! Breaks down the resident memory of each process (`crate::process::memory`): reads the data at the attach
//! and for each report.

use std::collections::HashMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::accounting::Growth;
use super::live::Live;
use crate::bpf::collect::RangeBytes;
use crate::process::memory::{Live as LiveBytes, Sums, Tracks};
use crate::process::smaps::Resident;
use leak_report::model::{Parts, Snapshot};

/// Resident memory of a process at a moment.
struct Reading {
    number: u32,
    mappings: Vec<Resident>,
    pointers: Vec<Avma>,
    /// Ranges of mappings, with and without resident pages, that can hold something outstanding.
    ranges: Vec<Range<Avma>>,
}

impl Live<'_> {
    /// Records the resident memory of instances whose trace begins.
    pub(super) fn note_memory(&mut self, numbers: &[u32]) {
        for (number, sums, _) in self.read_resident(numbers) {
            if let Some(process) = self.roster.get_mut(number) {
                process.memory.at_attach = Some(sums);
            }
        }
    }

    /// Sets the memory breakdown of each running process.
    pub(super) fn describe_memory(&mut self, snapshot: &Snapshot) {
        for process in self.roster.running_mut() {
            process.facts.memory = None;
        }
        let numbers = self.roster.running_that(|_, _| true);
        let totals = self.live_bytes(snapshot);
        let tracks = self.accounting.tracks();
        for (number, sums, is_complete) in self.read_resident(&numbers) {
            if let Some(process) = self.roster.get_mut(number) {
                let live = match is_complete {
                    true => LiveBytes::ByMapping,
                    false => LiveBytes::Total(totals.get(&number).copied().unwrap_or(0)),
                };
                let at_attach = process.memory.at_attach.as_ref();
                process.facts.memory = Some(sums.parts(tracks, live, at_attach));
            }
        }
    }

    /// Returns what grows in a process without a call of a probed function, by the last breakdown.
    pub(super) fn growth_without_calls(&self) -> Option<Growth> {
        let growth = |parts: &Parts| match parts.grows_without_calls() {
            Some(_) => Some(Growth::Allocator),
            None => parts.grows_elsewhere().map(|_| Growth::Elsewhere),
        };
        let parts = self
            .roster
            .all()
            .filter_map(|process| process.facts.memory.as_ref());
        parts.filter_map(growth).next()
    }

    /// Outstanding bytes of each instance. If there is only one, all stacks are counted as its.
    fn live_bytes(&self, snapshot: &Snapshot) -> HashMap<u32, u64> {
        let only = self.roster.only().map(|(number, _)| number);
        let mut totals = HashMap::new();
        for stack in &snapshot.stacks {
            let total = totals.entry(only.unwrap_or(stack.instance)).or_insert(0_u64);
            *total = total.saturating_add(stack.outstanding().amount.bytes);
        }
        totals
    }

    /// Reads the resident memory of instances, except those that have ended: sums, and true if the addresses
    /// of all outstanding amounts are known.
    fn read_resident(&mut self, numbers: &[u32]) -> Vec<(u32, Sums, bool)> {
        let readings: Vec<_> = numbers
            .iter()
            .filter_map(|&number| self.read_mapped(number))
            .collect();
        let wanted: Vec<_> = readings
            .iter()
            .map(|reading| (reading.number, reading.ranges.clone()))
            .collect();
        let outstanding = self.accounting.outstanding_in(&self.kernel, &wanted);
        let tracks = self.accounting.tracks();
        let read = readings.iter().zip(outstanding);
        read.map(|(reading, RangeBytes { bytes, is_complete })| {
            let live_in = |range: &Range<Avma>| {
                let ranges = &reading.ranges;
                let at = ranges.binary_search_by_key(&range.start, |candidate| candidate.start);
                at.ok().and_then(|at| bytes.get(at).copied()).unwrap_or(0)
            };
            let sums = Sums::of(&reading.mappings, &reading.pointers, tracks, live_in);
            (reading.number, sums, is_complete)
        })
        .collect()
    }

    /// Reads the mappings of a process, with their resident memory; `None` if it has ended.
    fn read_mapped(&mut self, number: u32) -> Option<Reading> {
        let process = self.roster.get_mut(number)?;
        let target = process.target.as_ref()?;
        let mappings = target.read_smaps().ok()?;
        process.memory.update(target.stack_pointers());
        let pointers = process.memory.stack_pointers.values().copied().collect();
        // Pages can be in all mappings.
        let is_of_pages = self.accounting.tracks() == Tracks::Pages;
        let anonymous = mappings
            .iter()
            .filter(|mapping| mapping.entry.inode == 0 || is_of_pages);
        let ranges = anonymous.map(|mapping| mapping.entry.range.clone()).collect();
        Some(Reading {
            number,
            mappings,
            pointers,
            ranges,
        })
    }
}
