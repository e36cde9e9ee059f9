//! Index of the blocks to judge, which finds a block by any address in it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::bits::Bits;
use super::passes::Identity;
use super::tags::Tags;

/// A block that was outstanding when it was listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub address: Avma,
    /// Requested size in bytes.
    pub size: u64,
    /// Time in nanoseconds of the kernel's monotonic clock. With the address, it identifies the block.
    pub allocated_at: u64,
    /// Number of its stack record.
    pub stack: u32,
}

impl Block {
    /// Returns the identity, which differs from that of any other block, including earlier ones at the same
    /// address.
    pub fn identity(&self) -> Identity {
        (self.address, self.allocated_at)
    }

    /// Addresses that lead to the block. A block of size 0 has one, too.
    pub fn range(&self) -> Range<Avma> {
        let end = self.address.get().saturating_add(self.size.max(1));
        self.address..Avma::new(end)
    }
}

/// Bits of an address within a chunk, for which the index has one entry, and within a part of a chunk.
const CHUNK_BITS: u32 = 21;
const PART_BITS: u32 = 12;
const PARTS: usize = 1 << (CHUNK_BITS - PART_BITS);

/// Maximum number of chunks with an index, of 2 KiB each: 64 GiB of blocks. A program can claim any size;
/// blocks in further chunks are found by a binary search of all.
const MAX_CHUNKS: usize = 1 << 15;

/// For each part of a chunk, the number of the first block that begins there or behind it; at last, of the
/// first behind the chunk.
type Chunk = [u32; PARTS + 1];

/// Blocks by address. Each has a number: its place in that order.
#[derive(Debug, Default)]
pub struct Heap {
    blocks: Vec<Block>,
    /// Bytes of each block beyond the requested size; empty if that is not known.
    slack: Vec<u16>,
    /// True if the program may have put pointers into the slack.
    is_slack_used: bool,
    chunks: HashMap<u64, Box<Chunk>, BuildHasherDefault<Spread>>,
    /// True if all chunks of blocks are indexed.
    is_indexed: bool,
    all: Range<u64>,
    tags: Tags,
}

impl Heap {
    /// Takes blocks in any order. No allocator returns blocks that overlap: of several that do, the last
    /// allocated one is kept, as the frees of the others were not seen.
    pub fn new(mut blocks: Vec<Block>) -> Self {
        blocks.sort_unstable_by_key(|block| (block.address, block.allocated_at));
        let mut kept: Vec<Block> = Vec::with_capacity(blocks.len());
        for block in blocks {
            let mut is_newest = true;
            while let Some(last) = kept.last().filter(|last| last.range().end > block.address) {
                if last.allocated_at > block.allocated_at {
                    is_newest = false;
                    break;
                }
                kept.pop();
            }
            if is_newest {
                kept.push(block);
            }
        }
        // Numbers of blocks have 32 bits, as on the kernel side.
        kept.truncate(u32::MAX as usize);
        let mut heap = Self {
            all: extent(&kept),
            blocks: kept,
            slack: Vec::new(),
            is_slack_used: false,
            chunks: HashMap::default(),
            is_indexed: true,
            tags: Tags::default(),
        };
        heap.make_index();
        heap
    }

    fn make_index(&mut self) {
        let mut next = 0;
        for number in 0..self.blocks.len() {
            let range = self.blocks[number].range();
            let (first, last) = (chunk_of(range.start.get()), chunk_of(range.end.get() - 1));
            for chunk in first.max(next)..=last {
                if self.chunks.len() == MAX_CHUNKS {
                    self.is_indexed = false;
                    return;
                }
                self.chunks.insert(chunk, self.index_of(chunk, number));
            }
            next = next.max(last + 1);
        }
    }

    /// Returns the index of a chunk. `from` is the first block that reaches into it: all earlier ones begin
    /// before it.
    fn index_of(&self, chunk: u64, from: usize) -> Box<Chunk> {
        let mut next = from;
        let part = |part: u64| (chunk << CHUNK_BITS).saturating_add(part << PART_BITS);
        Box::new(std::array::from_fn(|index| {
            let begins_before = |block: &&Block| block.address.get() < part(index as u64);
            while self.blocks.get(next).filter(begins_before).is_some() {
                next += 1;
            }
            number(next)
        }))
    }

    /// Sets the tags that pointers can have.
    pub fn set_tags(&mut self, tags: Tags) {
        self.tags = tags;
    }

    /// Number of the block that `word` leads to: as an address in it, or else as an address with a tag.
    pub fn at(&self, word: u64) -> Option<u32> {
        let tagged = || self.tags.addresses(word).find_map(|address| self.has(address));
        self.has(word).or_else(tagged)
    }

    /// Number of the block that has `address`.
    fn has(&self, address: u64) -> Option<u32> {
        if !self.all.contains(&address) {
            return None;
        }
        let candidates = match self.chunks.get(&chunk_of(address)) {
            Some(chunk) => {
                let part = (address >> PART_BITS) as usize % PARTS;
                chunk[part] as usize..chunk[part + 1] as usize
            }
            None if self.is_indexed => return None,
            None => 0..self.blocks.len(),
        };
        let before = candidates.start;
        let begun = self.blocks[candidates].partition_point(|block| block.address.get() <= address);
        let last = (before + begun).checked_sub(1)?;
        let last = number(last);
        self.range(last).contains(&Avma::new(address)).then_some(last)
    }

    /// Number of the block whose requested size ends at an address.
    pub fn ending_at(&self, end: Avma) -> Option<u32> {
        let number = self.has(end.get().checked_sub(1)?)?;
        let block = self.blocks.get(number as usize)?;
        (block.range().end == end).then_some(number)
    }

    /// Sets the ends of blocks, by number, if they are beyond the requested size. `is_used` is true if the
    /// program may have asked for the usable size and put pointers there. Otherwise only stale pointers can
    /// be there.
    pub fn extend(&mut self, usable: &[(u32, Avma)], is_used: bool) {
        self.is_slack_used = is_used;
        self.slack = vec![0; self.blocks.len()];
        for &(number, end) in usable {
            let next = self.blocks.get(number as usize + 1).map(|block| block.address);
            let end = next.map_or(end, |next| end.min(next));
            let slack = end.get().saturating_sub(self.range(number).end.get());
            if let Some(place) = self.slack.get_mut(number as usize) {
                *place = u16::try_from(slack).unwrap_or(u16::MAX);
            }
        }
        let last = self.blocks.len().saturating_sub(1);
        self.all.end = self.all.end.max(self.range(number(last)).end.get());
    }

    /// Addresses that lead to a block, including usable memory beyond the requested size; empty if there is
    /// no such block.
    pub fn range(&self, number: u32) -> Range<Avma> {
        let number = number as usize;
        let range = self
            .blocks
            .get(number)
            .map_or(Avma::new(0)..Avma::new(0), Block::range);
        let slack = self.slack.get(number).copied().unwrap_or(0);
        let end = range.end.get().saturating_add(slack.into());
        range.start..Avma::new(end)
    }

    /// Addresses of a block in which the program may have put pointers.
    pub fn contents(&self, number: u32) -> Range<Avma> {
        let requested = || self.blocks.get(number as usize).map(Block::range);
        match self.is_slack_used {
            true => self.range(number),
            false => requested().unwrap_or(Avma::new(0)..Avma::new(0)),
        }
    }

    /// Ranges of all blocks, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = Range<Avma>> {
        (0..number(self.blocks.len())).map(|number| self.range(number))
    }

    /// All blocks, by number.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Identity of a block.
    pub fn identity(&self, number: u32) -> Option<Identity> {
        self.blocks.get(number as usize).map(Block::identity)
    }

    /// Numbers of those of `blocks`, which ascend, that are in this heap.
    pub fn numbers(&self, blocks: &[Identity]) -> Bits {
        let mut here = Bits::new(self.blocks.len());
        let mut asked = blocks.iter().copied().peekable();
        for (block, number) in self.blocks.iter().zip(0..) {
            let identity = block.identity();
            while asked.next_if(|&asked| asked < identity).is_some() {}
            if asked.next_if_eq(&identity).is_some() {
                here.insert(number);
            }
        }
        here
    }
}

fn extent(blocks: &[Block]) -> Range<u64> {
    match (blocks.first(), blocks.last()) {
        (Some(first), Some(last)) => first.address.get()..last.range().end.get(),
        _ => 0..0,
    }
}

/// Number of the block at `index`. There are at most [`u32::MAX`] blocks.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn chunk_of(address: u64) -> u64 {
    address >> CHUNK_BITS
}

/// Hash of a chunk's number. It need not resist chosen collisions, since the kernel chooses the addresses of
/// memory.
#[derive(Clone, Copy, Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
