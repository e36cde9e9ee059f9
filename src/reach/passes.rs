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
/// Lost blocks are found, too, by stale pointers that come up in memory in use: of a process that has lost many, a few in nearly each
/// pass, however many are made. So K passes in a row, more than [`QUIET_PASSES`], may find some: at most this part of 2^K, so that
/// no held one is left if each pass finds half of those that there are; and as steadily as these would not be found. (Of blocks whose
/// pointers move as fast as two threads can do that, a pass found 62 of 100.)
const FOUND_OF_ALL: f64 = 0.01;
/// Passes at the end that are looked at: more blocks than 2^40 / 100 there are not.
const LAST_PASSES: usize = 40;

/// Address of a block and when it was allocated: its identity.
pub type Identity = (Avma, u64);

/// Result of the passes so far.
#[derive(Debug, Default)]
pub struct Passes {
    /// Blocks that were there at the first pass and at each since, and that none has reached, ascending. Others are held, or too
    /// young to be asked about, or freed.
    missed: Vec<Identity>,
    /// How many blocks each pass has found that no earlier one had.
    found: Vec<usize>,
}

impl Passes {
    /// Adds a pass, which listed the blocks of `heap` and then reached `reached`.
    pub fn add(&mut self, heap: &Heap, reached: &Bits) {
        let identity = |number: u32| heap.identity(number);
        let mut missed = Bits::all(heap.blocks().len());
        if !self.found.is_empty() {
            missed = heap.numbers(&self.missed);
        }
        let asked = missed.count();
        missed.remove(reached);
        self.found.push(asked - missed.count());
        self.missed = missed.iter().filter_map(identity).collect();
    }

    /// Takes out what was reached besides the passes, in a marking of the last one's `heap`.
    pub fn take_out(&mut self, heap: &Heap, reached: &Bits) {
        let mut missed = heap.numbers(&self.missed);
        missed.remove(reached);
        self.missed = missed.iter().filter_map(|number| heap.identity(number)).collect();
    }

    /// Returns whether more passes would be expected to say the same.
    pub fn are_enough(&self) -> bool {
        let is_empty = !self.found.is_empty() && self.missed.is_empty();
        is_empty || (self.count() >= MIN_PASSES && self.is_quiet())
    }

    /// Returns whether the last passes have found nothing, or in many so little, and so steadily, that no held block can be left.
    fn is_quiet(&self) -> bool {
        let later = self.found.get(1..).unwrap_or_default();
        let sum = |passes: usize| -> usize { later.iter().rev().take(passes).sum() };
        let quiet = usize::try_from(QUIET_PASSES).unwrap_or(usize::MAX);
        let mut at_most = FOUND_OF_ALL;
        (1..=later.len().min(LAST_PASSES)).any(|passes| {
            at_most *= 2.0;
            let (all, recent) = (sum(passes), sum(passes / 2));
            let is_steady = all as f64 <= at_most && 3 * recent >= all;
            passes >= quiet && (all == 0 || is_steady)
        })
    }

    /// Number of passes.
    pub fn count(&self) -> u32 {
        u32::try_from(self.found.len()).unwrap_or(u32::MAX)
    }

    /// Blocks that were asked about and that no pass has reached, ascending.
    pub fn missed(&self) -> &[Identity] {
        &self.missed
    }
}
