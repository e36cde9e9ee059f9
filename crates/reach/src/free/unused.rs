//! Memory that holds no block in use, blocks that allocators list, and facts about how both were found.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use leak_report::model::AllocatorName;
use unwind_tables::addr::Avma;

use crate::heap::{Block, Heap};
use crate::ranges::{joined, without};

/// Memory of the allocator that no block in use has, and usable memory of listed blocks beyond their
/// requested sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Memory that holds no block in use: contents of free chunks, tails of arenas, the allocator's own bins
    /// and caches. Ascending, without overlap with each other or with a listed block.
    pub ranges: Vec<Range<Avma>>,
    /// Listed blocks with whole usable words beyond the requested size, by number, and the ends of these
    /// words, which are read with the block. Ascending.
    pub usable: Vec<(u32, Avma)>,
    pub facts: Facts,
}

/// Facts about the way in which the ranges were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The allocator whose structures were found; of several, the one with most of the listed blocks.
    pub allocator: Option<Allocator>,
    pub arenas: usize,
    /// Chunks, used and free, whose headers agree with their neighbours'; for jemalloc, regions and large
    /// extents; for tcmalloc, blocks and free spans; for mimalloc, blocks; for musl, slots.
    pub chunks: u64,
    /// Chunks that look used and are in a thread's cache or another list of free ones.
    pub cached: u64,
    /// Listed blocks that begin where the structures have a block.
    pub agreeing: u64,
    /// Listed blocks that begin elsewhere: chunks around them stay roots.
    pub disagreeing: u64,
    /// Caches with unknown contents, which stay roots.
    pub unknown_caches: u64,
    /// Walks from chunk to chunk, by the reason why they ended. For musl, groups of slots that stay roots, by
    /// reason; for jemalloc, tcmalloc and mimalloc, records that are not trusted.
    pub ends: BTreeMap<End, u64>,
}

/// Allocator whose structures are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allocator {
    Glibc,
    Jemalloc,
    Mimalloc,
    /// mallocng, musl's allocator since 1.2.1.
    Musl,
    /// gperftools' tcmalloc.
    Tcmalloc,
}

impl Allocator {
    /// The allocator as reports have it.
    pub fn in_reports(self) -> AllocatorName {
        match self {
            Self::Glibc => AllocatorName::Glibc,
            Self::Jemalloc => AllocatorName::Jemalloc,
            Self::Mimalloc => AllocatorName::Mimalloc,
            Self::Musl => AllocatorName::Musl,
            Self::Tcmalloc => AllocatorName::Tcmalloc,
        }
    }

    /// Short name, as in JSON.
    pub fn name(self) -> &'static str {
        self.in_reports().name()
    }
}

/// Reason why a walk from chunk to chunk ended. For all but the first two, the memory behind the end stays a
/// root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Top of the arena.
    Top,
    /// Marks that the allocator leaves at the end of memory that it cannot extend.
    Fence,
    /// End of the mapping or heap, without either.
    Border,
    /// A header that contradicts the one before it.
    Malformed,
    /// Memory that could not be read.
    Unreadable,
    /// Nothing has confirmed that the walk began at a chunk, or too many listed blocks are not where the walk
    /// has chunks: all of its memory stays a root.
    Distrusted,
}

/// Blocks that a process has from its allocators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The allocators.
    pub allocators: Vec<Allocator>,
    /// Blocks in use, ascending by address.
    pub blocks: Vec<Block>,
    /// Bytes of glibc's arenas that are not listed: their structures changed while they were read, or nothing
    /// leads into them.
    pub left: u64,
}

/// Returns a block that an allocator lists. The time of its allocation is unknown: its size stands for it.
pub(super) fn listed(address: u64, size: u64) -> Block {
    Block {
        address: Avma::new(address),
        size,
        allocated_at: size,
        stack: 0,
    }
}

impl Facts {
    fn join(&mut self, other: Self) {
        let has_more = other.allocator.is_some() && other.agreeing > self.agreeing;
        if self.allocator.is_none() || has_more {
            self.allocator = other.allocator;
        }
        self.arenas += other.arenas;
        self.chunks += other.chunks;
        self.cached += other.cached;
        self.agreeing += other.agreeing;
        self.disagreeing += other.disagreeing;
        self.unknown_caches += other.unknown_caches;
        for (end, count) in other.ends {
            *self.ends.entry(end).or_default() += count;
        }
    }
}

impl Unused {
    pub(super) fn new(ranges: Vec<Range<u64>>, usable: Vec<(u32, Avma)>, facts: Facts) -> Self {
        let ranges = ranges.into_iter();
        let ranges = ranges.map(|range| Avma::new(range.start)..Avma::new(range.end));
        Self {
            ranges: joined(ranges.collect()),
            usable,
            facts,
        }
    }

    /// Adds the findings about another allocator.
    pub(super) fn join(&mut self, other: Self) {
        let ranges = self.ranges.drain(..).chain(other.ranges);
        self.ranges = joined(ranges.collect());
        self.usable.extend(other.usable);
        self.usable.sort_unstable();
        self.usable.dedup_by_key(|(number, _)| *number);
        self.facts.join(other.facts);
    }

    /// Adds memory behind the requested sizes of blocks to the blocks, unless their allocator says how large
    /// they are.
    pub fn add_slack(&mut self, slack: &[Range<Avma>], heap: &Heap) {
        let known: HashSet<_> = self.usable.iter().map(|(number, _)| *number).collect();
        let of = |range: &Range<Avma>| heap.ending_at(range.start).map(|number| (number, range.end));
        self.usable.extend(
            slack
                .iter()
                .filter_map(of)
                .filter(|(number, _)| !known.contains(number)),
        );
        self.usable.sort_unstable();
    }

    /// Adds memory that is known to be unused by other evidence, except for memory of blocks in `heap`.
    pub fn add(&mut self, more: Vec<Range<Avma>>, heap: &Heap) {
        let ranges = without(more, heap.ranges()).chain(std::mem::take(&mut self.ranges));
        self.ranges = joined(ranges.collect());
    }

    /// Removes the memory of all blocks of `heap`: they are in use.
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
