//! Unused memory of mimalloc 2.0.9 to 2.4 and 3.0 to 3.4, in 64-bit programs.
//!
//! mimalloc's memory consists of pages of blocks of one size. Those of mimalloc 2 are in segments, which are
//! found by their addresses and records ([`segments`]); a map leads to those of mimalloc 3 ([`map`]), of
//! which free memory between pages in use is not known. [`lists`] reads the free blocks of pages and heaps,
//! [`forms`] has the places of fields by version.
//!
//! Nothing is found by symbols, which libraries rarely have. Instead, each structure has to agree with what
//! leads to it, in both directions. Records of other versions do not, and all of their memory stays a root.
//! So does that of pages whose lists contradict them: of 3.0.1, those with aligned blocks that another thread
//! has freed, which its lists lead into the middle of; and of secure variants of mimalloc 3.

mod forms;
mod in_use;
mod lists;
mod map;
mod pieces;
mod segments;

use std::ops::Range;

use unwind_tables::addr::Avma;

pub(super) use self::in_use::in_use;
use self::lists::Free;
pub(super) use self::pieces::layout;
use self::segments::{Page, Segment};
use super::{Allocator, End, Facts, Unused};
use crate::Memory;
use crate::heap::Heap;
use memleak_process::maps::MapsEntry;

/// Listed blocks that need not be where a page has them, besides one in 16: blocks come and go while the
/// process runs.
const ODD_BLOCKS: u64 = 16;

/// Structures of one mimalloc.
struct Found {
    segments: Vec<Segment>,
    free: Free,
}

/// Reads the structures; `None` if there is no mimalloc.
fn search(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Found> {
    let mut segments = segments::find(memory, maps);
    if segments.is_empty() {
        segments = map::find(memory, maps);
    }
    if segments.is_empty() {
        return None;
    }
    let free = lists::read(memory, &mut segments);
    Some(Found { segments, free })
}

/// Finds the unused memory; nothing and no allocator if there is no mimalloc.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let Some(found) = search(memory, maps) else {
        return Unused::default();
    };
    let mut facts = Facts {
        allocator: Some(Allocator::Mimalloc),
        arenas: 1,
        unknown_caches: found.free.unknown_heaps.len() as u64,
        ..Facts::default()
    };
    let malformed = found.free.malformed.len();
    let malformed = malformed
        + found
            .segments
            .iter()
            .map(|segment| segment.malformed.len())
            .sum::<usize>();
    if malformed > 0 {
        facts.ends.insert(End::Malformed, malformed as u64);
    }
    let usable = found.hold_against(heap, &mut facts);
    if facts.disagreeing > ODD_BLOCKS + facts.agreeing / 16 {
        *facts.ends.entry(End::Distrusted).or_default() += 1;
        return Unused {
            facts,
            ..Unused::default()
        };
    }
    let ranges = found.unused(&mut facts);
    let mut unused = Unused::new(ranges, usable, facts);
    unused.cut_out(heap);
    unused
}

impl Found {
    fn page_of(&self, address: u64) -> Option<&Page> {
        let segment = self.segments.partition_point(|segment| segment.end <= address);
        self.segments.get(segment)?.page_of(address)
    }

    /// Returns true if free blocks of a page may not be known.
    fn is_unknown(&self, page: &Page) -> bool {
        self.free.malformed.contains(&page.at) || self.free.unknown_heaps.contains(&page.heap)
    }

    /// Compares the listed blocks with the pages. Returns the ends of those that have usable words beyond the
    /// requested size. An aligned block can begin inside of what its page has as a block.
    fn hold_against(&self, heap: &Heap, facts: &mut Facts) -> Vec<(u32, Avma)> {
        let mut usable = Vec::new();
        for (block, number) in heap.blocks().iter().zip(0..) {
            let range = block.range();
            let (start, end) = (range.start.get(), range.end.get());
            let Some(page) = self.page_of(start) else {
                continue;
            };
            match page.row.block_at(start) {
                Some(found) if end <= found.end => {
                    facts.agreeing += 1;
                    if found.end - end >= 8 {
                        usable.push((number, Avma::new(found.end)));
                    }
                }
                // Freed since it was listed, and the memory belongs to another page now.
                Some(_) | None => facts.disagreeing += 1,
            }
        }
        usable
    }

    /// Memory that holds no block. Segments without pages may be in other use by now.
    fn unused(&self, facts: &mut Facts) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for segment in self.segments.iter().filter(|segment| !segment.is_empty) {
            ranges.push(segment.info.clone());
            ranges.extend(segment.free.iter().cloned());
            for page in segment.pages.iter().filter(|page| !self.is_unknown(page)) {
                facts.chunks += page.row.count;
                ranges.extend([page.start..page.row.start, page.row.end()..page.end]);
                let blocks = page.row.blocks();
                let free = blocks.filter(|block| self.free.has(block.start));
                ranges.extend(free.inspect(|_| facts.cached += 1));
            }
        }
        ranges
    }
}
