//! Programs that traced processes execute, and whose first allocations are not seen because their allocator
//! is in a file that no process had mapped before. The program that memleak has started misses none, as it is
//! stopped meanwhile.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use leak_report::model::Snapshot;

use super::live::Live;
use crate::bpf::Origin;

/// Time after an exec in which added probes, even if they are not the first, count as having been missing
/// since the program's start.
const BEGINNING: Duration = Duration::from_secs(1);

/// Beginning of one instance.
#[derive(Debug)]
pub(super) struct Beginning {
    at: Instant,
    /// True once probes were attached to the files that it had mapped.
    is_attached: bool,
    is_missed: bool,
}

impl Beginning {
    /// Beginning of an instance that begins now.
    pub(super) fn now() -> Self {
        Self {
            at: Instant::now(),
            is_attached: false,
            is_missed: false,
        }
    }

    /// Notes that its allocator, if it had mapped one, has probes from now on.
    pub(super) fn attached(&mut self) {
        self.is_attached = true;
    }

    /// Notes that allocations until now were not seen. Returns for how long; `None` if that was noted before,
    /// or if this is no longer the beginning.
    fn miss(&mut self) -> Option<Duration> {
        let lasted = self.at.elapsed();
        let is_new = !self.is_missed && (!self.is_attached || lasted < BEGINNING);
        self.is_missed |= is_new;
        is_new.then_some(lasted)
    }
}

impl Live<'_> {
    /// Number of programs whose first allocations were not seen. Those that have ended before anything was
    /// attached to them count if their allocator is in their own file, and no block of theirs was seen.
    pub(super) fn missed_beginnings(&self, snapshot: &Snapshot) -> u64 {
        let seen: HashSet<u32> = snapshot.stacks.iter().map(|stack| stack.instance).collect();
        let unseen = self.roster.iter().filter(|(number, process)| {
            let is_missed = !process.is_live() && !process.beginning.is_attached;
            is_missed && process.instance.without_loader && !seen.contains(number)
        });
        self.missed_beginnings + unseen.count() as u64
    }

    /// Returns whether process `pid` is stopped after an exec until it has its probes.
    pub(super) fn is_held_at_exec(&self, pid: u32) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.pid() == pid)
    }

    /// Handles new probes of an instance, which lacked them until now.
    pub(super) fn note_beginning(&mut self, number: u32) {
        let Some(process) = self.roster.get(number) else {
            return;
        };
        if process.instance.origin != Origin::Execed || self.is_held_at_exec(process.facts.pid) {
            return;
        }
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        if let Some(lasted) = process.beginning.miss() {
            self.missed_beginnings += 1;
            tracing::info!(
                "allocations of {} ({}) in its first {lasted:.1?} were missed: its allocator had no probes \
                 yet",
                process.facts.comm,
                process.facts.pid
            );
        }
    }
}
