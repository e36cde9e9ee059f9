//! Lost blocks in memcheck's terms: definitely lost, or indirectly lost, because only lost blocks lead to
//! them.

use super::Memory;
use super::bits::Bits;
use super::heap::Heap;
use super::marking::Marking;

/// Lost blocks, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Blocks that no other lost block leads to, and one block of each cycle that no other lost block leads
    /// to.
    pub definitely: Bits,
    /// Blocks that definitely lost blocks lead to: freeing those properly frees these, too.
    pub indirectly: Bits,
}

/// Splits `lost` into definitely and indirectly lost blocks.
pub fn tell_apart(heap: &Heap, lost: &Bits, memory: &dyn Memory) -> Lost {
    let leaders = |candidates: &mut dyn Iterator<Item = u32>| not_led_to(heap, lost, memory, candidates);
    // No leader of the first pass leads to a later one. So in reverse order, a leader that is not reached yet
    // has no other leader.
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

/// Returns the candidates, in their order, that no earlier candidate leads to.
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
