//! The order of things in a verdict on one process.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::Memory;
use super::bits::Bits;
use super::heap::{Block, Heap};
use super::lost::tell_apart;
use super::marking::Marking;
use super::passes::Passes;
use super::ranges::common;
use super::roots::roots;

/// A process at one pass.
pub struct Sight<'a> {
    pub memory: &'a dyn Memory,
    /// Where memory is, ascending.
    pub pages: &'a [Range<Avma>],
    /// Blocks that were listed before anything else was read.
    pub heap: &'a Heap,
    /// Memory that the allocator says is in no use, ascending.
    pub unused: &'a [Range<Avma>],
    /// Parts of stacks that are in no use, ascending.
    pub dead: &'a [Range<Avma>],
    /// Words that are in no memory: registers, and what the kernel keeps.
    pub words: &'a [u64],
}

/// Blocks that no pass has reached, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostBlocks {
    pub definitely: Vec<Block>,
    pub indirectly: Vec<Block>,
}

/// Verdict on one process, pass by pass.
#[derive(Debug, Default)]
pub struct Judge {
    passes: Passes,
    /// Memory that was unused at every pass: what was in use at one of them can have been at the moment that it was read, whatever
    /// the allocator said a moment before.
    idle: Option<Vec<Range<Avma>>>,
}

impl Judge {
    /// Marks what the process reaches now.
    pub fn pass(&mut self, sight: &Sight<'_>) {
        let idle = match self.idle.take() {
            None => sight.unused.to_vec(),
            Some(idle) => common(&idle, sight.unused),
        };
        let mut marking = Marking::new(sight.heap);
        marking.see(sight.words);
        marking.follow(sight.memory, roots(sight.pages, sight.heap, &idle, sight.dead));
        self.passes.add(sight.heap, &marking.reached());
        self.idle = Some(idle);
    }

    /// The passes so far.
    pub fn passes(&self) -> &Passes {
        &self.passes
    }

    /// Tells apart what is lost, by memory that no one can have changed since.
    pub fn lost(&self, heap: &Heap, memory: &dyn Memory) -> LostBlocks {
        let lost = tell_apart(heap, &heap.numbers(self.passes.missed()), memory);
        let blocks = |bits: &Bits| {
            let blocks = bits
                .iter()
                .filter_map(|number| heap.blocks().get(number as usize));
            blocks.copied().collect()
        };
        LostBlocks {
            definitely: blocks(&lost.definitely),
            indirectly: blocks(&lost.indirectly),
        }
    }
}
