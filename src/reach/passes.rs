//! Several passes over a process that runs. Each sees memory while pointers move in it, so that one alone can miss the only pointer
//! to a block: it was read where the pointer was not yet, and not any more. What one pass has found is held for good; what none has
//! found after enough of them is lost, as nobody can bring a pointer to it back.

use super::bits::Bits;
use super::heap::Heap;

/// Passes without which nothing is called lost.
pub const MIN_PASSES: usize = 5;
/// Passes at the end, in a row, that find nothing new.
pub const QUIET_PASSES: usize = 4;

/// Result of the passes so far.
#[derive(Debug, Default)]
pub struct Passes {
    heap: Heap,
    /// Blocks that were there at the first pass and at each since, and that none has reached. Others are held, or too young to be
    /// asked about, or freed.
    lost: Bits,
    count: usize,
    quiet: usize,
}

impl Passes {
    /// Adds a pass, which listed the blocks of `heap` and then reached `reached`.
    pub fn add(&mut self, heap: Heap, reached: &Bits) {
        self.lost = match self.count {
            0 => Bits::all(heap.blocks().len()),
            _ => heap.still_here(&self.heap, &self.lost),
        };
        let before = self.lost.count();
        self.lost.remove(reached);
        let is_quiet = self.count > 0 && self.lost.count() == before;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.count += 1;
        self.heap = heap;
    }

    /// Returns whether more passes would be expected to say the same.
    pub fn are_enough(&self) -> bool {
        self.count >= MIN_PASSES && self.quiet >= QUIET_PASSES
    }

    /// Number of passes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Blocks of the last pass.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Blocks that were asked about and that no pass has reached, by their numbers in [`heap`](Self::heap).
    pub fn lost(&self) -> &Bits {
        &self.lost
    }
}
