//! Facts that a diagnosis is made of.

use std::collections::BTreeMap;
use std::time::Duration;

use leak_report::model::diagnosis::Place;
use leak_report::model::{AllocatorName, Amount};

use crate::region::{Amounts, Region};

/// Facts about one process.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Memory by region, oldest first.
    pub readings: Vec<Reading>,
    /// Uses of the allocator's memory at the first moment and at the last, if its structures are known.
    pub heap: Option<[HeapUse; 2]>,
    /// Places that took memory, by each trace.
    pub traces: Vec<Trace>,
    /// Names of what grew most in a region, where its memory has names: files, protocols of sockets.
    pub names: BTreeMap<Region, String>,
    /// Lost bytes among all blocks of the process, by the allocator's structures, if no trace can tell which
    /// are lost.
    pub lost: Option<u64>,
}

impl Observed {
    /// Places that took memory in one way, with the growth of each in bytes per second.
    pub(crate) fn rates(&self, took: Took) -> Vec<(&Site, f64)> {
        let sites = self.traces.iter().flat_map(|trace| {
            let of_way = trace.sites.iter().filter(move |site| site.took == took);
            of_way.map(move |site| (site, site.rate(trace)))
        });
        sites.collect()
    }
}

/// Memory at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time since the first reading.
    pub at: Duration,
    pub bytes: Amounts,
}

/// Uses of an allocator's memory, in bytes that are resident or swapped out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapUse {
    /// Blocks in use, with their headers, and the allocator's own records.
    pub in_blocks: u64,
    /// Free memory that blocks keep from being given back.
    pub pinned: u64,
    /// Free memory that nothing keeps, in caches of threads, too.
    pub free: u64,
    /// Part of `free` and `pinned` that the allocator gives back if it is told to.
    pub trimmable: u64,
    /// Allocator that holds most of `trimmable`.
    pub allocator: Option<AllocatorName>,
    /// Free memory of glibc's arenas but the two that have most of it: what two arenas would share.
    pub beyond_two: u64,
}

impl std::ops::Add for HeapUse {
    type Output = Self;

    /// Adds the uses of another allocator of the process; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            in_blocks: self.in_blocks.saturating_add(other.in_blocks),
            pinned: self.pinned.saturating_add(other.pinned),
            free: self.free.saturating_add(other.free),
            trimmable: self.trimmable.saturating_add(other.trimmable),
            allocator: match other.trimmable > self.trimmable {
                true => other.allocator,
                false => self.allocator.or(other.allocator),
            },
            beyond_two: self.beyond_two.saturating_add(other.beyond_two),
        }
    }
}

/// Kind of memory that a place took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Took {
    /// A block of an allocator.
    Block,
    /// A mapping, by a call.
    Mapping,
    /// The mapping of a thread's stack.
    ThreadStack,
    /// Pages of a region, by touching them, or by writing to a file in memory.
    Page(Region),
    /// A file in memory, by opening it.
    MemoryFile,
    /// A descriptor, with what the kernel keeps for it.
    Descriptor,
}

/// A place in the program that took memory during a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    pub place: Place,
    pub took: Took,
    /// Outstanding at the end of the trace, of what was taken since its begin.
    pub outstanding: Amount,
    /// Outstanding in the middle of the trace.
    pub before: Amount,
    /// Part of `outstanding` that is lost.
    pub lost: Amount,
    /// Free memory that its blocks pin, and how many of them pin any.
    pub pinned: Amount,
    /// Holder of most of the rest.
    pub holder: Option<String>,
}

/// A trace, and its places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Time from the middle of the trace, at which [`Site::before`] was read, to the end.
    pub second_half: Duration,
    pub sites: Vec<Site>,
    /// True if verdicts were made.
    pub is_judged: bool,
}

impl Site {
    /// Growth in bytes per second, by the second half of the trace: what settles soon does not grow there.
    pub fn rate(&self, trace: &Trace) -> f64 {
        let grown = self.outstanding.bytes.saturating_sub(self.before.bytes);
        grown as f64 / trace.second_half.as_secs_f64().max(1e-3)
    }

    /// Part of the outstanding bytes that is lost, from 0 to 1.
    pub fn lost_share(&self) -> f64 {
        self.lost.bytes as f64 / self.outstanding.bytes.max(1) as f64
    }
}
