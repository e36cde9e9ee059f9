//! Lost blocks that may be reachable after all, by words in the kernel that cannot be read. Only the number
//! of these words is known.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::Memory;
use super::heap::{Block, Heap};
use super::judge::LostBlocks;
use super::marking::Marking;

/// Moves the blocks that `most` words in the kernel may hold from `lost` to its `perhaps`: for each stack,
/// the `most` youngest definitely lost blocks, and the indirectly lost blocks that these lead to.
///
/// A word holds at most one block. So each of a stack's remaining blocks is lost, or else one of those moved
/// is lost in its place. The youngest are taken as a request to the kernel mostly takes a short time, so that
/// its block is young.
pub fn take_out(lost: &mut LostBlocks, heap: &Heap, memory: &dyn Memory, most: u64) {
    if most == 0 {
        return;
    }
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    lost.definitely
        .sort_by_key(|block| Reverse((block.allocated_at, block.address)));
    let mut taken: HashMap<u32, usize> = HashMap::new();
    let is_taken = |block: &mut Block| {
        let of_stack = taken.entry(block.stack).or_default();
        *of_stack += 1;
        *of_stack <= most
    };
    let mut perhaps: Vec<_> = lost.definitely.extract_if(.., is_taken).collect();
    lost.definitely.sort_by_key(|block| block.address);
    let mut marking = Marking::new(heap);
    let heads: Vec<_> = perhaps.iter().map(Block::identity).collect();
    for number in heap.numbers(&heads).iter() {
        marking.mark(number);
    }
    marking.follow(memory, []);
    let led_to = marking.reached();
    let blocks = led_to
        .iter()
        .filter_map(|number| heap.blocks().get(number as usize));
    let led_to: HashSet<_> = blocks.map(Block::identity).collect();
    perhaps.extend(
        lost.indirectly
            .extract_if(.., |block| led_to.contains(&block.identity())),
    );
    lost.perhaps = perhaps;
}
