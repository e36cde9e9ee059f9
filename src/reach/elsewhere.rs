//! Lost blocks that may be held after all, by words that are in the kernel and cannot be read: of how many there are, not of where they lead.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::Memory;
use super::heap::{Block, Heap};
use super::judge::LostBlocks;
use super::marking::Marking;

/// Takes out of `lost` what as many as `most` words of the kernel can hold: of each stack so many blocks, the youngest, and what these lead
/// to.
///
/// A word holds one block at most, so that of the others of a stack each is lost, or holds the place of one that is. A request is under way
/// for a short time, mostly, so that its block is young.
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
