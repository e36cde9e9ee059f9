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

pub(super) use self::in_use::in_use;
use self::lists::Free;
pub(super) use self::pieces::layout;
use self::segments::{Page, Segment};
use super::{Allocator, End, Facts, Unused, agreement};
use crate::Memory;
use crate::heap::Heap;
use memleak_process::maps::MapsEntry;

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
    let Some(usable) = agreement::usable(heap, &mut facts, |at| found.block_from(at)) else {
        return Unused {
            facts,
            ..Unused::default()
        };
    };
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

    /// Memory of the block that contains an address: an aligned block can begin inside of what its page has
    /// as a block.
    fn block_from(&self, address: u64) -> agreement::Found {
        match self.page_of(address) {
            Some(page) => page.row.block_at(address).into(),
            None => agreement::Found::Elsewhere,
        }
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
