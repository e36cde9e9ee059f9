//! Memory that was freed during the trace and is unused since, whatever the allocator: found without the
//! allocator's structures.
//!
//! A stale pointer to a block of the trace was written during the trace, so mostly into memory of another
//! block of the trace: the frees that were seen cover nearly all of it. [`Notes`] has what the kernel side
//! saw (`bpf/process/freed.h`). Freed memory is left out where anything may have come to use it again: a
//! block; a mapping made since; a block whose allocation was not seen. Memory behind the requested size of a
//! block belongs to the block: only code that can reach the block can use it.
//!
//! In memory that an allocator took for itself during the trace, everything outside blocks is unused: memory
//! that it has not given out yet, and its own records, which lead to blocks wherever it keeps lists of them.
//! All times are nanoseconds of the kernel's monotonic clock.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;
use std::time::Duration;

use unwind_tables::addr::Avma;

use super::super::heap::Block;
use super::super::ranges::{common, joined, without};
use memleak_process::maps::{MapsEntry, MapsName};

/// Memory, and the time of an event in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dated {
    pub range: Range<Avma>,
    pub at: u64,
    /// True if an allocator took the memory for itself then, and nothing was there before.
    pub by_allocator: bool,
}

/// Notes on one process. Whoever makes them must read them in the order of the fields, `freed` first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Memory of blocks that were freed. A time can be too early, but not too late.
    pub freed: Vec<Dated>,
    /// Memory that was given to the process. A time can be too late, but not too early.
    pub taken: Vec<Dated>,
    /// Time before which frees are unreliable; `None` if all are.
    pub void_before: Option<u64>,
    /// Last reason for doubts about the process itself.
    pub doubt: Option<&'static str>,
    /// Number of blocks that were freed without a note.
    pub not_noted: u64,
}

/// Bytes that an allocator may add to the sizes of its classes: part of a header, or of a remainder that is
/// too small for a block.
const EXTRA: u64 = 16;
/// Least distance of two size classes.
const LEAST_STEP: u64 = 16;
/// Minimum number of size classes from a power of two to the next: jemalloc and mimalloc have four.
const STEPS: u64 = 4;

/// Upper bound of the end of a block's usable memory.
fn usable_end(block: &Block) -> Avma {
    let size = block.size.max(1);
    let power = 1 << (size - 1).max(1).ilog2();
    let step = (power / STEPS).max(LEAST_STEP);
    let usable = size.checked_next_multiple_of(step).unwrap_or(u64::MAX);
    Avma::new(block.address.get().saturating_add(usable).saturating_add(EXTRA))
}

/// Memory that blocks were freed from, divided by whether an outstanding block can use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Unused memory. The ranges ascend, without overlap with each other or with blocks.
    pub unused: Vec<Range<Avma>>,
    /// Memory behind the requested sizes of blocks, which can be used through these blocks only. The ranges
    /// ascend, without overlap; each begins where the requested size of a block ends.
    pub slack: Vec<Range<Avma>>,
}

/// Finds memory that is unused since before `began`, when the first pass over the process began: memory that
/// was in use at one pass must not be left out at another. `blocks` were listed after the notes were read.
/// The times of blocks can be too early, by at most `precision`.
pub fn find(notes: &Notes, blocks: &[Block], maps: &[MapsEntry], began: u64, precision: Duration) -> Freed {
    let Some(void_before) = notes.void_before else {
        return Freed::default();
    };
    let precision = u64::try_from(precision.as_nanos()).unwrap_or(u64::MAX);
    let slack = blocks.iter().map(|block| Dated {
        range: block.range().end..usable_end(block),
        at: block.allocated_at.saturating_add(precision),
        by_allocator: false,
    });
    let own = latest(notes.taken.clone()).into_iter();
    let own = own.filter(|taken| taken.by_allocator && taken.at > void_before);
    // If a free was not noted, its memory cannot be told from memory that was free all the time.
    let own: Vec<_> = own
        .filter(|_| notes.not_noted == 0)
        .map(|taken| taken.range)
        .collect();
    let freed = latest(notes.freed.clone());
    let new = freed.iter().filter(|freed| freed.at >= began);
    let new: Vec<_> = new.map(|freed| freed.range.clone()).collect();
    let anonymous = anonymous(maps);
    let used = joined(blocks.iter().map(Block::range).collect());
    let without_blocks = |taken: Vec<Dated>, ends: fn(&Block) -> Avma| {
        let mut unused = since_freed(&freed, &latest(taken), void_before, began);
        let with_slack = blocks.iter().map(|block| block.address..ends(block));
        let in_use = joined(new.iter().cloned().chain(with_slack).collect());
        unused.extend(without(own.iter().cloned(), in_use));
        let unused = common(&joined(unused), &anonymous);
        without(unused, used.iter().cloned()).collect::<Vec<_>>()
    };
    let unused = without_blocks(notes.taken.iter().cloned().chain(slack).collect(), usable_end);
    let all = without_blocks(notes.taken.clone(), |block| block.range().end);
    let begins: HashSet<_> = blocks.iter().map(|block| block.range().end).collect();
    let slack = without(all, unused.iter().cloned()).filter(|range| begins.contains(&range.start));
    Freed {
        slack: slack.collect(),
        unused,
    }
}

/// Memory that was freed after `void_before` and before `began`, and was not taken since then.
fn since_freed(freed: &[Dated], taken: &[Dated], void_before: u64, began: u64) -> Vec<Range<Avma>> {
    let mut unused = Vec::new();
    let mut first = 0;
    for Dated { range, at, .. } in freed {
        if *at <= void_before || *at >= began {
            continue;
        }
        while taken
            .get(first)
            .is_some_and(|taken| taken.range.end <= range.start)
        {
            first += 1;
        }
        let within = taken.get(first..).unwrap_or_default().iter();
        let within = within.take_while(|taken| taken.range.start < range.end);
        let since = within.filter(|taken| taken.at >= *at);
        unused.extend(without([range.clone()], since.map(|taken| taken.range.clone())));
    }
    unused
}

/// Memory that only noted mapping calls can make: no files, no memory shared with others, and no stack that
/// the kernel extends.
pub(super) fn anonymous(maps: &[MapsEntry]) -> Vec<Range<Avma>> {
    let is_anonymous = |entry: &&MapsEntry| {
        !entry.shared
            && match &entry.name {
                MapsName::Anonymous => entry.inode == 0,
                MapsName::Special(name) => name == "[heap]" || name.starts_with("[anon:"),
                MapsName::File { .. } => false,
            }
    };
    let maps = maps.iter().filter(is_anonymous);
    maps.map(|entry| entry.range.clone()).collect()
}

/// An open range in a binary heap whose top is the latest one.
#[derive(Debug, PartialEq, Eq)]
struct Latest {
    at: u64,
    end: Avma,
    by_allocator: bool,
}

impl Ord for Latest {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |latest: &Self| (latest.at, !latest.by_allocator, latest.end);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Latest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Cuts ranges that can overlap into ascending ones that do not, each with the latest time of the ranges
/// there.
fn latest(mut dated: Vec<Dated>) -> Vec<Dated> {
    dated.retain(|dated| !dated.range.is_empty());
    dated.sort_unstable_by_key(|dated| dated.range.start);
    let mut pieces: Vec<Dated> = Vec::with_capacity(dated.len());
    // Ranges that have begun, including ended ones that are not at the top.
    let mut open = BinaryHeap::new();
    let mut from = Avma::new(0);
    let mut next = dated.into_iter().peekable();
    loop {
        while open.peek().is_some_and(|latest: &Latest| latest.end <= from) {
            open.pop();
        }
        let begins = next.peek().map(|dated| dated.range.start);
        let (Some(to), piece) = (match open.peek() {
            None => (begins, None),
            Some(top) => (
                Some(begins.map_or(top.end, |begins| begins.min(top.end))),
                Some((top.at, top.by_allocator)),
            ),
        }) else {
            return pieces;
        };
        if let Some((at, by_allocator)) = piece.filter(|_| from < to) {
            let range = from..to;
            pieces.push(Dated {
                range,
                at,
                by_allocator,
            });
        }
        from = to;
        while let Some(begun) = next.next_if(|dated| dated.range.start <= from) {
            open.push(Latest {
                at: begun.at,
                end: begun.range.end,
                by_allocator: begun.by_allocator,
            });
        }
    }
}

#[cfg(test)]
mod tests;
