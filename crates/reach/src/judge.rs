//! Order of the steps of a verdict on one process.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::Memory;
use super::bits::Bits;
use super::heap::{Block, Heap};
use super::lost::tell_apart;
use super::marking::Marking;
use super::passes::{MIN_PASSES, Passes};
use super::ranges::common;
use super::roots::roots;

/// A process at one pass.
pub struct Sight<'a> {
    pub memory: &'a dyn Memory,
    /// Pages that may be read, ascending.
    pub pages: &'a [Range<Avma>],
    /// Blocks that were listed before anything else was read.
    pub heap: &'a Heap,
    /// Memory that is in no use, of the allocator or of exited threads, ascending.
    pub unused: &'a [Range<Avma>],
    /// Dead parts of stacks, ascending.
    pub dead: &'a [Range<Avma>],
    /// Words outside memory: in registers, and those that the kernel keeps.
    pub words: &'a [u64],
}

/// Blocks that no pass has reached, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostBlocks {
    pub definitely: Vec<Block>,
    pub indirectly: Vec<Block>,
    /// Blocks that are neither, if words that could not be read may hold them:
    /// [`take_out`](super::elsewhere::take_out).
    pub perhaps: Vec<Block>,
}

/// Verdict on one process, pass by pass.
#[derive(Debug, Default)]
pub struct Judge {
    passes: Passes,
    idle: Idle,
}

/// Memory that was unused at all of the last passes. Memory that was in use at one of them may have been in
/// use when it was read, whatever the allocator's structures said a moment before.
///
/// At first these are all passes, later at least the last [`MIN_PASSES`]: a process that goes on allocating
/// uses all of its memory at some time, and with the number of passes, the number of stale pointers that
/// count would grow.
#[derive(Debug, Default)]
struct Idle {
    /// Memory that was unused at each of `passes` passes. `later` counts only those behind the first
    /// [`MIN_PASSES`] of these, and replaces `all` when there are twice as many.
    all: Option<Vec<Range<Avma>>>,
    later: Option<Vec<Range<Avma>>>,
    passes: u32,
}

impl Idle {
    /// Adds the memory that is unused at one more pass. Returns the idle memory.
    fn add(&mut self, unused: &[Range<Avma>]) -> &[Range<Avma>] {
        if self.passes == 2 * MIN_PASSES {
            self.all = self.later.take();
            self.passes = MIN_PASSES;
        }
        if self.passes >= MIN_PASSES {
            narrow(&mut self.later, unused);
        }
        self.passes += 1;
        narrow(&mut self.all, unused)
    }
}

/// Intersects `ranges` with `others`. At first, `ranges` becomes `others`.
fn narrow<'a>(ranges: &'a mut Option<Vec<Range<Avma>>>, others: &[Range<Avma>]) -> &'a [Range<Avma>] {
    let narrowed = match ranges.take() {
        None => others.to_vec(),
        Some(ranges) => common(&ranges, others),
    };
    ranges.insert(narrowed)
}

impl Judge {
    /// Makes a pass: marks the blocks that the process reaches now.
    pub fn pass(&mut self, sight: &Sight<'_>) {
        let idle = self.idle.add(sight.unused);
        let mut marking = Marking::new(sight.heap);
        marking.see(sight.words);
        marking.follow(sight.memory, roots(sight.pages, sight.heap, idle, sight.dead));
        self.passes.add(sight.heap, &marking.reached());
    }

    /// Notes the blocks that another marking of the last pass's `heap` has reached: they are held.
    pub fn take_out(&mut self, heap: &Heap, reached: &Bits) {
        self.passes.take_out(heap, reached);
    }

    /// Memory that was unused at all of the last passes, ascending.
    pub fn idle(&self) -> &[Range<Avma>] {
        self.idle.all.as_deref().unwrap_or_default()
    }

    /// The passes so far.
    pub fn passes(&self) -> &Passes {
        &self.passes
    }

    /// Splits the lost blocks by kind. Their contents in `memory` are final, as the process cannot reach
    /// them.
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
            perhaps: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory is idle if it was unused at every pass; after many passes, at the last five to ten.
    #[test]
    fn idle_memory() {
        let range = |start, end| Avma::new(start)..Avma::new(end);
        let mut idle = Idle::default();
        assert_eq!(idle.add(&[range(0, 100)]), [range(0, 100)]);
        // In use once.
        assert_eq!(
            idle.add(&[range(0, 10), range(20, 100)]),
            [range(0, 10), range(20, 100)]
        );
        let mut passes = 2;
        while idle.add(&[range(0, 100)]).len() == 2 {
            passes += 1;
        }
        assert_eq!(passes, 10);
        assert_eq!(idle.add(&[range(0, 50)]), [range(0, 50)]);
        for _ in 0..4 {
            assert_eq!(idle.add(&[range(0, 100)]), [range(0, 50)]);
        }
    }
}
