//! Agreement of an allocator's structures with the listed blocks.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::{End, Facts};
use crate::heap::Heap;

/// Listed blocks that need not be where the structures have them, besides one in 16: blocks come and go while
/// the process runs.
const ODD_BLOCKS: u64 = 16;

/// Memory at the start of a listed block, by the structures.
pub(super) enum Found {
    /// Memory of another allocator.
    Elsewhere,
    /// Memory of a block, which the listed one must fit into.
    Block(Range<u64>),
    /// Memory of this allocator in which no block begins there.
    NoBlock,
}

impl From<Option<Range<u64>>> for Found {
    fn from(block: Option<Range<u64>>) -> Self {
        block.map_or(Self::NoBlock, Self::Block)
    }
}

/// Returns true if so many blocks agree that the structures are trusted.
pub(super) fn is_enough(agreeing: u64, disagreeing: u64) -> bool {
    disagreeing <= ODD_BLOCKS + agreeing / 16
}

/// Compares the listed blocks with the memory that `find` returns for their addresses. Returns the ends of
/// those that have usable words beyond the requested size; `None` if the structures are not to be trusted.
pub(super) fn usable(
    heap: &Heap,
    facts: &mut Facts,
    find: impl Fn(u64) -> Found,
) -> Option<Vec<(u32, Avma)>> {
    let mut usable = Vec::new();
    for (block, number) in heap.blocks().iter().zip(0..) {
        let range = block.range();
        let (start, end) = (range.start.get(), range.end.get());
        match find(start) {
            Found::Elsewhere => {}
            Found::Block(memory) if end <= memory.end => {
                facts.agreeing += 1;
                if memory.end - end >= 8 {
                    usable.push((number, Avma::new(memory.end)));
                }
            }
            // Freed since it was listed, and the memory is used otherwise now.
            Found::Block(_) | Found::NoBlock => facts.disagreeing += 1,
        }
    }
    if is_enough(facts.agreeing, facts.disagreeing) {
        return Some(usable);
    }
    *facts.ends.entry(End::Distrusted).or_default() += 1;
    None
}
