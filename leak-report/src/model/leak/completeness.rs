//! How far the stacks of a report can be trusted: sums over all sites, with or without outstanding blocks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unwind_tables::walk::{End, FoundBy};

use super::Site;

/// Sums of how walks ended and how frames were found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completeness {
    /// Distinct sites, by the end of their stack.
    pub stacks: BTreeMap<End, u64>,
    /// Allocated blocks, by the end of their stack. One walk is made per allocated block.
    pub allocations: BTreeMap<End, u64>,
    /// Frames, by how they were found, over all walks: each site's frames times its allocated blocks.
    pub frames: BTreeMap<FoundBy, u64>,
}

impl Completeness {
    /// The sums over `sites`.
    pub fn of<M>(sites: &[Site<M>]) -> Self {
        let mut sums = Self::default();
        for site in sites {
            let walks = site.allocated.amount.blocks;
            add(&mut sums.stacks, site.end, 1);
            add(&mut sums.allocations, site.end, walks);
            for frame in &site.frames {
                add(&mut sums.frames, frame.found_by, walks);
            }
        }
        sums
    }

    /// Stacks that are complete, and all.
    pub fn complete_stacks(&self) -> [u64; 2] {
        complete_of(&self.stacks)
    }

    /// Allocations whose stack is complete, and all.
    pub fn complete_allocations(&self) -> [u64; 2] {
        complete_of(&self.allocations)
    }

    /// Frames found this way.
    pub fn frames_by(&self, found_by: FoundBy) -> u64 {
        self.frames.get(&found_by).copied().unwrap_or(0)
    }
}

/// Saturates: recordings can say anything.
fn complete_of(counts: &BTreeMap<End, u64>) -> [u64; 2] {
    let complete = counts.get(&End::Complete).copied().unwrap_or(0);
    [complete, counts.values().copied().fold(0, u64::saturating_add)]
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, key: K, amount: u64) {
    let sum = sums.entry(key).or_insert(0);
    *sum = sum.saturating_add(amount);
}
