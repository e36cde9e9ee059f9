//! Owns the traced instances of processes, running and ended.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::process::Process;
use super::tables::debug_roots;
use crate::process::Mappings;
use crate::process::shared::share_memory;

/// Instances by number. Ended ones stay, so that their stacks can be named.
#[derive(Default)]
pub(super) struct Roster(BTreeMap<u32, Process>);

impl Roster {
    pub(super) fn insert(&mut self, number: u32, process: Process) {
        self.0.insert(number, process);
    }

    pub(super) fn get(&self, number: u32) -> Option<&Process> {
        self.0.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Process> {
        self.0.get_mut(&number)
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.0.contains_key(&number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All instances with their numbers, in the order in which they began.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.0.iter().map(|(&number, process)| (number, process))
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Process> {
        self.0.values()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.0.values_mut()
    }

    /// The only instance; `None` if there are others.
    pub(super) fn only(&self) -> Option<(u32, &Process)> {
        self.iter().next().filter(|_| self.0.len() == 1)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Process> {
        self.all().filter(|process| process.is_live())
    }

    pub(super) fn running_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.all_mut().filter(|process| process.is_live())
    }

    /// Numbers of the instances that run and are as `is_so` says.
    pub(super) fn running_that(&self, is_so: impl Fn(u32, &Process) -> bool) -> Vec<u32> {
        let running = self.iter().filter(|(_, process)| process.is_live());
        running
            .filter_map(|(number, process)| is_so(number, process).then_some(number))
            .collect()
    }

    pub(super) fn is_any_running(&self) -> bool {
        self.running().next().is_some()
    }

    /// Returns whether an instance runs.
    pub(super) fn is_running(&self, number: u32) -> bool {
        self.get(number).is_some_and(Process::is_live)
    }

    /// Process ids of the instances that run.
    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.running().map(|process| process.facts.pid)
    }

    /// Numbers of the ended instances.
    pub(super) fn ended(&self) -> HashSet<u32> {
        let ended = self.iter().filter(|(_, process)| !process.is_live());
        ended.map(|(number, _)| number).collect()
    }

    /// The running instance of another process whose memory process `pid` shares.
    pub(super) fn owner_of_memory(&self, pid: u32) -> Option<u32> {
        let is_owner =
            |process: &Process| process.facts.pid != pid && share_memory(process.facts.pid, pid) == Ok(true);
        let mut running = self.iter().filter(|(_, process)| process.is_live());
        running
            .find(|(_, process)| is_owner(process))
            .map(|(number, _)| number)
    }

    /// Mappings of all instances.
    pub(super) fn mappings(&self) -> impl Iterator<Item = &Mappings> {
        self.all().map(|process| &process.mappings)
    }

    /// Directories to search for separate debug files.
    pub(super) fn debug_roots(&self) -> Vec<PathBuf> {
        debug_roots(self.all().filter_map(|process| process.target.as_ref()))
    }
}
