//! Blocks in use, by jemalloc's own structures.

use std::collections::HashSet;

use super::super::records::range;
use super::super::unused::listed;
use super::{Found, search};
use crate::Memory;
use crate::heap::Block;
use memleak_process::maps::MapsEntry;

/// Maximum size in bytes of the stacks of unknown caches. Beyond it, nothing is listed.
const MAX_UNKNOWN: u64 = 128 << 20;

/// Lists all blocks in use; `None` if there is no jemalloc.
pub(in super::super) fn in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Vec<Block>> {
    let found = search(memory, maps)?;
    let unknown = found.unknown.iter().map(|stack| stack.end - stack.start);
    if unknown.sum::<u64>() > MAX_UNKNOWN {
        return Some(Vec::new());
    }
    let left_out = found.left_out(memory);
    let extents = &found.extents;
    let blocks = extents.iter().flat_map(|extent| extents.blocks(extent));
    let blocks = blocks.filter(|block| !left_out.contains(&block.start));
    let blocks = blocks.map(|block| listed(block.start, block.end - block.start));
    Some(blocks.collect())
}

impl Found {
    /// Addresses of blocks that are, or were a moment before or after, in caches, and of the allocator's own
    /// blocks. For an unknown cache, all addresses that were ever in its stacks are included.
    fn left_out(&self, memory: &dyn Memory) -> HashSet<u64> {
        let cached = self.rounds.iter().flat_map(|round| &round.cached);
        let cached = cached.map(|cached| cached.address);
        let stacks = self.stacks.iter().chain(&self.unknown).map(|stack| stack.start);
        let mut left_out: HashSet<u64> = cached.chain(stacks).collect();
        for stack in &self.unknown {
            memory.visit(&[range(stack)], &mut |_, words| left_out.extend(words));
        }
        left_out
    }
}
