//! The order of things in a verdict on one process.

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
    /// Neither, if words that could not be read lead to them: [`take_out`](super::elsewhere::take_out).
    pub perhaps: Vec<Block>,
}

/// Verdict on one process, pass by pass.
#[derive(Debug, Default)]
pub struct Judge {
    passes: Passes,
    idle: Idle,
}

/// Memory that was unused at the last passes: what was in use at one of them can have been at the moment that it was read, whatever
/// the allocator said a moment before.
///
/// At first that is all passes, later at least the last [`MIN_PASSES`]: of a process that goes on allocating, in the end all memory
/// was in use some time, and the more passes were made, the more stale pointers would count.
#[derive(Debug, Default)]
struct Idle {
    /// Unused at each of `passes`, and at each of the later half of them, since there are enough.
    all: Option<Vec<Range<Avma>>>,
    later: Option<Vec<Range<Avma>>>,
    passes: u32,
}

impl Idle {
    /// Adds what is unused at one more pass. Returns what is idle.
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

/// Leaves of `ranges` what is in `others`, too; all of these at first.
fn narrow<'a>(ranges: &'a mut Option<Vec<Range<Avma>>>, others: &[Range<Avma>]) -> &'a [Range<Avma>] {
    let narrowed = match ranges.take() {
        None => others.to_vec(),
        Some(ranges) => common(&ranges, others),
    };
    ranges.insert(narrowed)
}

impl Judge {
    /// Marks what the process reaches now.
    pub fn pass(&mut self, sight: &Sight<'_>) {
        let idle = self.idle.add(sight.unused);
        let mut marking = Marking::new(sight.heap);
        marking.see(sight.words);
        marking.follow(sight.memory, roots(sight.pages, sight.heap, idle, sight.dead));
        self.passes.add(sight.heap, &marking.reached());
    }

    /// Notes what was reached besides the passes, in a marking of the last one's `heap`: it is held.
    pub fn take_out(&mut self, heap: &Heap, reached: &Bits) {
        self.passes.take_out(heap, reached);
    }

    /// Memory that was unused at every pass so far, ascending.
    pub fn idle(&self) -> &[Range<Avma>] {
        self.idle.all.as_deref().unwrap_or_default()
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
            perhaps: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory is idle if it was unused at every pass, of many at the last five to ten.
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
