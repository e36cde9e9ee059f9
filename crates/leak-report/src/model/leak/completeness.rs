//! Completeness of a report's stacks: sums over all sites, with or without outstanding blocks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unwind_tables::walk::{End, FoundBy};

use super::{PythonStacks, Site};
use crate::model::counts::{Count, line, metric};

/// Sums of the ends of walks and of the methods by which frames were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completeness {
    /// Distinct sites by the end of their stack.
    pub stacks: BTreeMap<End, u64>,
    /// Allocated blocks by the end of their stack. Each allocated block has one walk.
    pub allocations: BTreeMap<End, u64>,
    /// Frames by the method that found them, over all walks: each site's frames times its allocated blocks.
    pub frames: BTreeMap<FoundBy, u64>,
    /// Walks that were finished in user space: they met code whose table was not in the kernel yet.
    #[serde(default)]
    pub finished_walks: u64,
    /// Walks that met such code and were not finished: there was no room for them, or the mappings of that
    /// moment were not known.
    #[serde(default)]
    pub unfinished_walks: u64,
    /// Allocated blocks of stacks with Python functions, by how many of the functions were placed.
    #[serde(default)]
    pub python: PythonStacks,
}

/// Walks that met code whose table was not in the kernel yet.
pub const WALKS: [Count<Completeness>; 2] = [
    Count {
        field: "finished_in_user_space",
        of: |sums| sums.finished_walks,
        metric: None,
        line: line(
            |sums| sums.finished_walks,
            "walk",
            "finished in user space, through code that had just been mapped",
        ),
    },
    Count {
        field: "not_finished",
        of: |sums| sums.unfinished_walks,
        metric: metric(
            "memleak_unfinished_walks_total",
            "Walks that ended at code that had just been mapped, for want of room.",
        ),
        line: line(
            |sums| sums.unfinished_walks,
            "walk",
            "not finished: they end at code that had just been mapped",
        ),
    },
];

impl Completeness {
    /// Sums over `sites`.
    pub fn of<M>(sites: &[Site<M>]) -> Self {
        let mut sums = Self::default();
        for site in sites {
            let walks = site.allocated.amount.blocks;
            add(&mut sums.stacks, site.end, 1);
            add(&mut sums.allocations, site.end, walks);
            sums.finished_walks = sums.finished_walks.saturating_add(site.finished_walks);
            for frame in &site.frames {
                add(&mut sums.frames, frame.found_by, walks);
            }
        }
        sums
    }

    /// Number of complete stacks, and of all stacks.
    pub fn complete_stacks(&self) -> [u64; 2] {
        complete_of(&self.stacks)
    }

    /// Number of allocations with a complete stack, and of all allocations.
    pub fn complete_allocations(&self) -> [u64; 2] {
        complete_of(&self.allocations)
    }

    /// Number of frames found by this method.
    pub fn frames_by(&self, found_by: FoundBy) -> u64 {
        self.frames.get(&found_by).copied().unwrap_or(0)
    }
}

/// Saturates, since counts in a recording are untrusted.
fn complete_of(counts: &BTreeMap<End, u64>) -> [u64; 2] {
    let complete = counts.get(&End::Complete).copied().unwrap_or(0);
    [complete, counts.values().copied().fold(0, u64::saturating_add)]
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, key: K, amount: u64) {
    let sum = sums.entry(key).or_insert(0);
    *sum = sum.saturating_add(amount);
}
