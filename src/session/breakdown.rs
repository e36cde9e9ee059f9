//! Breaks down the resident memory of each process (`crate::process::memory`): reads the data at the attach
//! and for each report.

use std::collections::HashMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::accounting::Growth;
use super::live::Live;
use super::pinned::Pinned;
use crate::bpf::collect::RangeBytes;
use crate::process::census::Divided;
use crate::process::memory::{Live as LiveBytes, Sums, Tracks};
use crate::process::smaps::Resident;
use leak_report::model::{Fragmentation, NotMeasured, Parts, Snapshot};

/// Resident memory of a process at a moment.
struct Reading {
    number: u32,
    divided: Divided,
    /// Ranges of memory, with and without resident pages, that can hold something outstanding.
    ranges: Vec<Range<Avma>>,
}

impl Live<'_> {
    /// Records the resident memory of instances whose trace begins.
    pub(super) fn note_memory(&mut self, numbers: &[u32]) {
        let readings = self.read_divided(numbers);
        for (number, sums, _) in self.sum_up(&readings) {
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
        let readings = self.read_divided(&numbers);
        for reading in &readings {
            if let Some(process) = self.roster.get_mut(reading.number)
                && let Some(target) = &process.target
            {
                process.memory.look_beside(target, &reading.divided);
            }
        }
        for (number, sums, is_complete) in self.sum_up(&readings) {
            if let Some(process) = self.roster.get_mut(number) {
                let live = match is_complete {
                    true => LiveBytes::ByPortion,
                    false => LiveBytes::Total(totals.get(&number).copied().unwrap_or(0)),
                };
                let at_attach = process.memory.at_attach.as_ref();
                let mut parts = sums.parts(tracks, live, at_attach);
                process.memory.add_beside(&mut parts.beside);
                process.facts.memory = Some(parts);
            }
        }
    }

    /// Sets the uses of the allocators' memory of all processes; of none if they were not read.
    pub(super) fn describe_fragmentation(&mut self, pinned: Option<&Pinned>) {
        for process in self.roster.all_mut() {
            let known = pinned.map(|pinned| pinned.of_instance(process.facts.instance).cloned());
            process.facts.fragmentation = match known {
                Some(None) if !process.is_live() => Some(Fragmentation::Unknown(NotMeasured::Ended)),
                known => known.flatten(),
            };
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

    /// Reads the memory of instances, except those that have ended.
    fn read_divided(&mut self, numbers: &[u32]) -> Vec<Reading> {
        let numbers = numbers.iter();
        numbers.filter_map(|&number| self.read(number)).collect()
    }

    /// Sums up the memory of instances; true if the addresses of all outstanding amounts are known.
    fn sum_up(&self, readings: &[Reading]) -> Vec<(u32, Sums, bool)> {
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
            let process = self.roster.get(reading.number);
            let sampled = process.map_or_else(Default::default, |process| process.memory.sampled());
            let sums = Sums::of(&reading.divided, sampled, tracks, live_in);
            (reading.number, sums, is_complete)
        })
        .collect()
    }

    /// Reads the memory of a process; `None` if it has ended.
    fn read(&mut self, number: u32) -> Option<Reading> {
        let process = self.roster.get_mut(number)?;
        let target = process.target.as_ref()?;
        process.memory.update(target.stack_pointers());
        let mut pointers: Vec<_> = process.memory.stack_pointers.values().copied().collect();
        pointers.sort_unstable();
        let divided = target.read_divided(&pointers).ok()?;
        // Pages can be in all mappings.
        let is_of_pages = self.accounting.tracks() == Tracks::Pages;
        let is_anonymous = |mapping: &Resident| mapping.entry.inode == 0 || is_of_pages;
        let portions = divided.portions.iter();
        let anonymous = portions.filter(|portion| divided.mapping(portion).is_some_and(is_anonymous));
        let ranges = anonymous.map(|portion| portion.range.clone()).collect();
        Some(Reading {
            number,
            divided,
            ranges,
        })
    }
}
