//! One pass: from roots through the blocks that they lead to.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::Memory;
use super::bits::Bits;
use super::heap::Heap;

/// Blocks, and ranges of roots, that are read at once.
const BATCH: usize = 1 << 14;

/// Blocks that were reached so far, and those whose memory is still to be read.
#[derive(Debug)]
pub struct Marking<'a> {
    heap: &'a Heap,
    reached: Bits,
    pending: Vec<u32>,
}

impl<'a> Marking<'a> {
    pub fn new(heap: &'a Heap) -> Self {
        Self {
            heap,
            reached: Bits::new(heap.blocks().len()),
            pending: Vec::new(),
        }
    }

    /// Restricts marking to `blocks`: all other blocks count as reached from the start, and are not followed.
    pub fn within(heap: &'a Heap, blocks: &Bits) -> Self {
        let mut reached = Bits::all(heap.blocks().len());
        reached.remove(blocks);
        Self {
            reached,
            ..Self::new(heap)
        }
    }

    /// Marks a block. Returns true if it is new.
    pub fn mark(&mut self, number: u32) -> bool {
        let is_new = self.reached.insert(number);
        if is_new {
            self.pending.push(number);
        }
        is_new
    }

    /// Marks the blocks that `words` lead to. Interior pointers count.
    pub fn see(&mut self, words: &[u64]) {
        for &word in words {
            if let Some(number) = self.heap.at(word) {
                self.mark(number);
            }
        }
    }

    /// Marks all blocks that can be reached from `roots`, which ascend and do not overlap, and from blocks
    /// that were marked before.
    pub fn follow(&mut self, memory: &dyn Memory, roots: impl IntoIterator<Item = Range<Avma>>) {
        let mut roots = roots.into_iter();
        loop {
            let some: Vec<_> = roots.by_ref().take(BATCH).collect();
            if some.is_empty() {
                break;
            }
            memory.visit(&some, &mut |_, words| self.see(words));
        }
        while !self.pending.is_empty() {
            // By address, so that neighbours are read together.
            let mut batch = self.pending.split_off(self.pending.len().saturating_sub(BATCH));
            batch.sort_unstable();
            let ranges: Vec<_> = batch.iter().map(|&number| self.heap.contents(number)).collect();
            memory.visit(&ranges, &mut |_, words| self.see(words));
        }
    }

    /// All blocks that were reached.
    pub fn reached(self) -> Bits {
        self.reached
    }
}
