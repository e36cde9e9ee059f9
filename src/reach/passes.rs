//! Several passes over a process that runs. Each sees memory while pointers move in it, so that one alone can miss the only pointer
//! to a block: it was read where the pointer was not yet, and not any more. What one pass has found is held for good; what none has
//! found after enough of them is lost, as nobody can bring a pointer to it back.

use unwind_tables::addr::Avma;

use super::bits::Bits;
use super::heap::Heap;

/// Passes without which nothing is called lost.
pub const MIN_PASSES: u32 = 5;
/// Passes at the end, in a row, that find nothing new.
pub const QUIET_PASSES: u32 = 4;

/// Address of a block and when it was allocated: its identity.
pub type Identity = (Avma, u64);

/// Result of the passes so far.
#[derive(Debug, Default)]
pub struct Passes {
    /// Blocks that were there at the first pass and at each since, and that none has reached, ascending. Others are held, or too
    /// young to be asked about, or freed.
    missed: Vec<Identity>,
    count: u32,
    quiet: u32,
}

impl Passes {
    /// Adds a pass, which listed the blocks of `heap` and then reached `reached`.
    pub fn add(&mut self, heap: &Heap, reached: &Bits) {
        let identity = |number: u32| heap.identity(number);
        let mut missed = Bits::all(heap.blocks().len());
        if self.count > 0 {
            missed = heap.numbers(&self.missed);
        }
        let asked = missed.count();
        missed.remove(reached);
        let is_quiet = self.count > 0 && missed.count() == asked;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.count += 1;
        self.missed = missed.iter().filter_map(identity).collect();
    }

    /// Returns whether more passes would be expected to say the same.
    pub fn are_enough(&self) -> bool {
        let is_empty = self.count > 0 && self.missed.is_empty();
        is_empty || (self.count >= MIN_PASSES && self.quiet >= QUIET_PASSES)
    }

    /// Number of passes.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Blocks that were asked about and that no pass has reached, ascending.
    pub fn missed(&self) -> &[Identity] {
        &self.missed
    }
}
