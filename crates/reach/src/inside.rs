//! Blocks that are reachable only by interior pointers. Compilers and libraries make some forms of these from
//! pointers to a whole block: memcheck has a heuristic for each. By any other form, memcheck calls a block
//! possibly lost.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use leak_report::model::{Amount, Inside};
use unwind_tables::addr::{Avma, contains};

use super::Memory;
use super::bits::Bits;
use super::heap::{Block, Heap};
use super::ranges::has;

/// Maximum number of blocks for which an interior pointer is remembered until one to their start is found.
/// Further ones are not reported.
const MAX_REMEMBERED: usize = 1 << 20;
const WORD: u64 = 8;
/// Bytes of the header of a reference-counted string of libstdc++ (`_Rep_base`: length, capacity, count).
const STRING_HEADER: u64 = 24;

/// Pointers that were seen so far, by block.
#[derive(Debug)]
pub struct Pointers {
    /// Blocks with a pointer to their start.
    whole: Bits,
    /// Smallest offset of an interior pointer in bytes, for all other blocks.
    inside: HashMap<u32, u64>,
}

impl Pointers {
    /// Starts without pointers to any of `count` blocks.
    pub fn new(count: usize) -> Self {
        Self {
            whole: Bits::new(count),
            inside: HashMap::new(),
        }
    }

    /// Adds a word that leads to a block.
    pub fn see(&mut self, heap: &Heap, number: u32, word: u64) {
        let start = heap.blocks().get(number as usize).map(|block| block.address);
        let offset = start.map_or(0, |start| word.wrapping_sub(start.get()));
        // A word with a tag is no address in the block, and counts as a pointer to its start.
        let is_inside = offset != 0 && contains(&heap.range(number), Avma::new(word));
        if !is_inside {
            if self.whole.insert(number) {
                self.inside.remove(&number);
            }
        } else if !self.whole.has(number) {
            let remembered = self.inside.len();
            match self.inside.get_mut(&number) {
                Some(least) => *least = offset.min(*least),
                None if remembered < MAX_REMEMBERED => _ = self.inside.insert(number, offset),
                None => {}
            }
        }
    }

    /// Sums the blocks without a pointer to their start, by the form of their interior pointer. `tables` is
    /// memory that can contain tables of virtual functions, ascending.
    pub fn sums(self, heap: &Heap, memory: &dyn Memory, tables: &[Range<Avma>]) -> BTreeMap<Inside, Amount> {
        let mut sums: BTreeMap<Inside, Amount> = BTreeMap::new();
        let is_table = |word: u64| has(tables, Avma::new(word));
        for (number, offset) in self.inside {
            let Some(block) = heap.blocks().get(number as usize) else {
                continue;
            };
            let sum = sums.entry(form(block, offset, memory, is_table)).or_default();
            *sum = *sum
                + Amount {
                    bytes: block.size,
                    blocks: 1,
                };
        }
        sums
    }
}

/// Returns the form of a pointer that leads `offset` bytes behind the start of a block.
fn form(block: &Block, offset: u64, memory: &dyn Memory, is_table: impl Fn(u64) -> bool) -> Inside {
    let word = |offset: u64| {
        let mut word = [0];
        let at = block.address.checked_add(offset)?;
        let is_there = offset.is_multiple_of(WORD) && memory.read(at, &mut word);
        is_there.then_some(word[0])
    };
    let Some(first) = word(0) else {
        return Inside::Elsewhere;
    };
    let rest = block.size.saturating_sub(WORD);
    if offset == WORD && first > 0 && (first == rest || rest.is_multiple_of(first) && rest >= first) {
        return Inside::LengthPrefix;
    }
    if offset == STRING_HEADER {
        let capacity = word(WORD).unwrap_or(0);
        let has_room = capacity.checked_add(STRING_HEADER + 1);
        if first <= capacity && has_room.is_some_and(|bytes| bytes <= block.size) {
            return Inside::String;
        }
    }
    match is_table(first) && word(offset).is_some_and(is_table) {
        true => Inside::SecondBase,
        false => Inside::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Words(Vec<(u64, u64)>);

    impl Memory for Words {
        fn visit(&self, _: &[Range<Avma>], _: &mut dyn FnMut(Avma, &[u64])) {}

        fn read(&self, at: Avma, words: &mut [u64]) -> bool {
            let word = self.0.iter().find(|(address, _)| *address == at.get());
            words[0] = word.map_or(0, |(_, word)| *word);
            true
        }
    }

    /// Each form is recognized by the block's words; a pointer to the start, or one with a tag, outweighs any
    /// other.
    #[test]
    fn forms() {
        let block = |address: u64, size: u64| Block {
            address: Avma::new(address),
            size,
            allocated_at: 0,
            stack: 0,
        };
        let sizes = [40, 48, 64, 64, 48, 48, 48];
        let blocks = sizes.iter().zip(1..).map(|(&size, at)| block(at * 0x1000, size));
        let heap = Heap::new(blocks.collect());
        let memory = Words(vec![
            // Four elements of 8 bytes; 40 bytes in all; a string of length 5 and capacity 30; two tables; a
            // number.
            (0x1000, 4),
            (0x2000, 40),
            (0x3000, 5),
            (0x3008, 30),
            (0x4000, 0x9010),
            (0x4010, 0x9080),
            (0x5000, 7),
        ]);
        let tables = [Avma::new(0x9000)..Avma::new(0xa000)];
        let mut pointers = Pointers::new(sizes.len());
        for word in [
            0x1008, 0x2008, 0x3018, 0x4010, 0x5008, 0x5020, 0x6008, 0x6000, 0x7008,
        ] {
            let number = heap.at(word).expect("in a block");
            pointers.see(&heap, number, word);
        }
        // As if the tag had been taken off.
        pointers.see(&heap, 6, 0xff00_0000_0000_7000);
        let sums = pointers.sums(&heap, &memory, &tables);
        let blocks: Vec<_> = sums.iter().map(|(&form, sum)| (form, sum.blocks)).collect();
        let expected = [
            (Inside::LengthPrefix, 2),
            (Inside::SecondBase, 1),
            (Inside::String, 1),
            (Inside::Elsewhere, 1),
        ];
        assert_eq!(blocks, expected);
    }
}
