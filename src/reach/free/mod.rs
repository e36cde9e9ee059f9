//! Memory of the allocator that holds no block in use. It is full of stale pointers, so it must not be a root: what they lead to is
//! lost all the same.
//!
//! Only what the allocator's own structures prove is called unused, read as untrusted: a doubt leaves memory a root. Blocks that are
//! in use and not listed, from before the trace, stay roots, too. The structures of two allocators are known, glibc's and musl's; memory of
//! others is not told apart by them, and no allocator at all is found there. What was freed while it was traced is known of all
//! ([`seen`]).

mod glibc;
mod granules;
mod musl;
pub mod seen;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::Memory;
use super::heap::{Block, Heap};
use super::ranges::{joined, without};
use crate::process::maps::MapsEntry;

/// Memory that is read with no block, or with another one than its requested size says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Memory that holds no block in use: contents of free chunks, tails of arenas, the allocator's own bins and caches. Ascending,
    /// apart from each other, and from each listed block.
    pub ranges: Vec<Range<Avma>>,
    /// Listed blocks of which the program can use whole words beyond the requested size, by number, and where these end: they are
    /// read with the block. Ascending.
    pub usable: Vec<(u32, Avma)>,
    pub facts: Facts,
}

/// How the ranges were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The allocator whose structures were found.
    pub allocator: Option<Allocator>,
    pub arenas: usize,
    /// Chunks, used and free, whose headers agree with their neighbours'.
    pub chunks: u64,
    /// Chunks that look used and are in a thread's cache or another list of free ones.
    pub cached: u64,
    /// Listed blocks that are where the walk has a chunk in use.
    pub agreeing: u64,
    /// Listed blocks that are not: chunks around them stay roots.
    pub disagreeing: u64,
    /// Walks from chunk to chunk, by why they ended; of musl, groups of slots that stay roots, by why.
    pub ends: BTreeMap<End, u64>,
}

/// Allocator whose structures are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allocator {
    Glibc,
    /// Since 1.2.1.
    Musl,
}

impl Allocator {
    /// Name, as reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
        }
    }
}

/// Why a walk from chunk to chunk ended. All but the first two leave what is behind it roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// At the top of its arena.
    Top,
    /// At the marks that the allocator leaves at the end of memory that it cannot extend.
    Fence,
    /// At the end of the mapping or heap, without either.
    Border,
    /// At a header that contradicts the one before it.
    Malformed,
    /// At memory that could not be read.
    Unreadable,
    /// Nothing has confirmed that it began at a chunk, or too many listed blocks were elsewhere than it has chunks: all of it stays
    /// roots.
    Distrusted,
}

/// Finds the unused memory of the process whose mappings are `maps`, and whose listed blocks are `heap`'s.
///
/// The process may run: what is free when it is read can be allocated a moment later. Blocks that are listed after the reading are to
/// be cut out again by [`Unused::cut_out`].
pub fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let found = glibc::find(memory, maps, heap);
    match found.facts.allocator {
        Some(_) => found,
        None => musl::find(memory, maps, heap),
    }
}

/// Lists the blocks that the process has from its allocator, ascending, and says which that is; `None` if its structures are not known.
///
/// A block's size is what the program can use of it, and as nobody has seen when it was allocated, that is its size, too: what is at
/// its address with another size is another one. Of glibc, blocks that begin in the middle of a mapping of their own are not listed, and
/// neither are those between memory that the program took by `sbrk` itself and the next free chunk.
pub fn blocks_in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<(Allocator, Vec<Block>)> {
    let of_glibc = glibc::in_use(memory, maps).map(|blocks| (Allocator::Glibc, blocks));
    of_glibc.or_else(|| Some((Allocator::Musl, musl::in_use(memory, maps)?)))
}

impl Unused {
    fn new(ranges: Vec<Range<u64>>, usable: Vec<(u32, Avma)>, facts: Facts) -> Self {
        let ranges = ranges.into_iter();
        let ranges = ranges.map(|range| Avma::new(range.start)..Avma::new(range.end));
        Self {
            ranges: joined(ranges.collect()),
            usable,
            facts,
        }
    }

    /// Adds memory that is known to be unused otherwise, except for what blocks of `heap` have.
    pub fn add(&mut self, more: Vec<Range<Avma>>, heap: &Heap) {
        let ranges = without(more, heap.ranges()).chain(std::mem::take(&mut self.ranges));
        self.ranges = joined(ranges.collect());
    }

    /// Leaves out the memory of all blocks of `heap`: they are in use.
    pub fn cut_out(&mut self, heap: &Heap) {
        let blocks = heap.blocks();
        let mut left = Vec::with_capacity(self.ranges.len());
        let mut next = 0;
        for Range { mut start, end } in std::mem::take(&mut self.ranges) {
            next += blocks[next..].partition_point(|block| block.range().end <= start);
            let within = blocks[next..].iter().map(Block::range);
            for block in within.take_while(|block| block.start < end) {
                if start < block.start {
                    left.push(start..block.start);
                }
                start = block.end;
            }
            if start < end {
                left.push(start..end);
            }
        }
        self.ranges = left;
    }
}
