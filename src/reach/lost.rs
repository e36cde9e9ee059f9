//! Lost blocks in memcheck's words: definitely lost, or only indirectly, by others that are lost.

use super::Memory;
use super::bits::Bits;
use super::heap::Heap;
use super::marking::Marking;

/// Lost blocks, told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// No other lost block leads to them; of those that lead to each other in a circle, and to which no other leads, one.
    pub definitely: Bits,
    /// Whoever mends the former has these back, too.
    pub indirectly: Bits,
}

/// Tells apart the blocks of `lost`.
pub fn tell_apart(heap: &Heap, lost: &Bits, memory: &dyn Memory) -> Lost {
    let leaders = |candidates: &mut dyn Iterator<Item = u32>| not_led_to(heap, lost, memory, candidates);
    // None of the first leaders leads to a later one. So backwards, each that is not reached yet is one that no other leads to.
    let first = leaders(&mut lost.iter());
    let mut definitely = Bits::new(heap.blocks().len());
    for leader in leaders(&mut first.into_iter().rev()) {
        definitely.insert(leader);
    }
    let mut indirectly = lost.clone();
    indirectly.remove(&definitely);
    Lost {
        definitely,
        indirectly,
    }
}

/// Candidates, in their order, that none before them leads to.
fn not_led_to(
    heap: &Heap,
    lost: &Bits,
    memory: &dyn Memory,
    candidates: &mut dyn Iterator<Item = u32>,
) -> Vec<u32> {
    let mut marking = Marking::within(heap, lost);
    let is_leader = |candidate: &u32| {
        let is_new = marking.mark(*candidate);
        marking.follow(memory, []);
        is_new
    };
    candidates.filter(is_leader).collect()
}
