//! Counts blocks that a process's library chose and could not announce.

use std::collections::BTreeSet;

use super::probes::AllocatorProbes;
use crate::bpf::Origin;
use crate::process::{MappedCode, Mappings, Target};

/// Blocks of a process that its library chose and could not announce.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotAnnounced {
    /// Count when the trace of the process began; `None` until it was read.
    before: Option<u64>,
    now: u64,
}

impl NotAnnounced {
    pub(super) fn of(origin: Origin) -> Self {
        Self {
            // A program begins with 0; a forked one has its parent's count.
            before: (origin == Origin::Execed).then_some(0),
            now: 0,
        }
    }

    pub(super) fn since_begin(self) -> u64 {
        self.now.saturating_sub(self.before.unwrap_or(self.now))
    }

    /// Reads the count of a running process.
    pub(super) fn read(&mut self, target: &Target, mappings: &Mappings, probes: &AllocatorProbes) {
        let counters = mappings.entries().iter().filter_map(|entry| match entry.code {
            MappedCode::Module { module, bias } => Some(bias.to_avma(probes.not_announced_counter(module)?)),
            MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
        });
        // The library can be mapped in several pieces of code.
        let counters: BTreeSet<_> = counters.collect();
        let counts: Option<Vec<_>> = counters
            .into_iter()
            .map(|counter| target.read_word(counter).ok())
            .collect();
        if let Some(counts) = counts {
            self.now = counts.into_iter().fold(0, u64::saturating_add);
            self.before.get_or_insert(self.now);
        }
    }
}
