//! Memory that blocks were freed from while they were traced, and that is in no use since: of any allocator, without its structures.
//!
//! A stale pointer to a block that was allocated during the trace was written during the trace, so mostly into what was a block of
//! the trace, too: frees that were seen cover nearly all of it. [`Notes`] is what the kernel side saw (`bpf/process/freed.h`). Such
//! memory is left out where anything can have come to use it again: a block; a mapping made since; a block whose allocation was not
//! seen. What lies behind the requested size of a block can be in use, by who can reach the block: it is a part of it.
//!
//! In memory that an allocator took for itself during the trace, all that is in no block is in no use: what it has not given out yet,
//! and its own records, which lead to blocks wherever it keeps lists of them. All times are nanoseconds of the kernel's monotonic clock.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;
use std::time::Duration;

use unwind_tables::addr::Avma;

use super::super::heap::Block;
use super::super::ranges::{common, joined, without};
use crate::process::maps::{MapsEntry, MapsName};

/// Memory, and the time of what happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dated {
    pub range: Range<Avma>,
    pub at: u64,
    /// True if an allocator took it for itself then, and nothing was there before.
    pub by_allocator: bool,
}

/// Notes on one process, in the order in which they are to be read: of what was freed first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Memory that blocks were freed from. The times can be early, not late.
    pub freed: Vec<Dated>,
    /// Memory that was given to the process. The times can be late, not early.
    pub taken: Vec<Dated>,
    /// Time before which frees are not to be relied upon; `None` if none are.
    pub void_before: Option<u64>,
    /// Last reason for doubts about the process itself.
    pub doubt: Option<&'static str>,
    /// Blocks that were freed and are not noted.
    pub not_noted: u64,
}

/// Bytes that an allocator gives in addition to what its size classes do: part of a header, or of a rest that is too small for a
/// block.
const EXTRA: u64 = 16;
/// Least distance of two size classes.
const LEAST_STEP: u64 = 16;
/// Size classes from a power of two to the next, at least: jemalloc and mimalloc have four.
const STEPS: u64 = 4;

/// Highest end of the memory of a block, whose requested size is `size`, that its program can use.
fn usable_end(block: &Block) -> Avma {
    let size = block.size.max(1);
    let power = 1 << (size - 1).max(1).ilog2();
    let step = (power / STEPS).max(LEAST_STEP);
    let usable = size.checked_next_multiple_of(step).unwrap_or(u64::MAX);
    Avma::new(block.address.get().saturating_add(usable).saturating_add(EXTRA))
}

/// Memory that was freed, by the blocks that are outstanding now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Memory in no use. Ascending, apart from each other and from blocks.
    pub unused: Vec<Range<Avma>>,
    /// Memory behind the requested sizes of blocks that can be theirs, and nothing else's. Ascending, apart from each other; that of a
    /// block begins where its requested size ends.
    pub slack: Vec<Range<Avma>>,
}

/// Finds memory that is in no use since before `began`, when the first pass over the process did: what was in use at one pass must not
/// be left out at another. `blocks` were listed after the notes. `precision` is the time by which the times of these can be early.
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
    // Where a free was not noted, it cannot be told from what was free all the time.
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

/// Memory that was freed after `void_before` and before `began`, and not taken since then.
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

/// Memory that only mapping calls that are noted can make: no file's, nobody else's, and no stack's that the kernel extends.
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

/// An open range in a heap whose top is the latest.
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

/// Cuts ranges that can overlap into ascending ones that do not, each with the latest time of those that have it.
fn latest(mut dated: Vec<Dated>) -> Vec<Dated> {
    dated.retain(|dated| !dated.range.is_empty());
    dated.sort_unstable_by_key(|dated| dated.range.start);
    let mut pieces: Vec<Dated> = Vec::with_capacity(dated.len());
    // Those that have begun, also ended ones that are not at the top.
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
