//! Several passes over a running process. Pointers move while a pass reads memory, so that a single pass can
//! miss the only pointer to a block: it reads the new place too early and the old place too late. A block
//! that one pass has found is held for good; a block that enough passes have not found is lost, as the
//! process has no way to get a pointer to it back.

use unwind_tables::addr::Avma;

use super::bits::Bits;
use super::heap::Heap;

/// Minimum number of passes before a block is called lost.
pub const MIN_PASSES: u32 = 5;
/// Number of last passes, in a row, that must find nothing new.
pub const QUIET_PASSES: u32 = 4;
/// Part of 2^K blocks that the last K passes, at least [`QUIET_PASSES`], may still find. Stale pointers that
/// come up in memory in use find lost blocks, too: in a process that has lost many, a few in nearly each
/// pass, however many passes are made. If no more are found, no held block can be left, provided that each
/// pass finds half of those that remain. They must also be found steadily, as held blocks would not be.
/// (Measured: of blocks whose pointers move as fast as two threads can move them, a pass found 62 of 100.)
const FOUND_OF_ALL: f64 = 0.01;
/// Maximum K (see `FOUND_OF_ALL`): there are never more than 2^40 / 100 blocks.
const LAST_PASSES: usize = 40;

/// Address of a block and when it was allocated: its identity.
pub type Identity = (Avma, u64);

/// Result of the passes so far.
#[derive(Debug, Default)]
pub struct Passes {
    /// Blocks that were listed at the first pass and at each later one, and that no pass has reached,
    /// ascending. All other blocks are held, younger than the first pass, or freed.
    missed: Vec<Identity>,
    /// Number of blocks that each pass was the first to find.
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

    /// Removes the blocks that another marking of the last pass's `heap` has reached.
    pub fn take_out(&mut self, heap: &Heap, reached: &Bits) {
        let mut missed = heap.numbers(&self.missed);
        missed.remove(reached);
        self.missed = missed.iter().filter_map(|number| heap.identity(number)).collect();
    }

    /// Returns true if more passes are not expected to change the result.
    pub fn are_enough(&self) -> bool {
        let is_empty = !self.found.is_empty() && self.missed.is_empty();
        is_empty || (self.count() >= MIN_PASSES && self.is_quiet())
    }

    /// Returns true if the last passes have found nothing, or so few blocks and so steadily that no held
    /// block can be left.
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

    /// Blocks that were listed at each pass and that no pass has reached, ascending.
    pub fn missed(&self) -> &[Identity] {
        &self.missed
    }
}
