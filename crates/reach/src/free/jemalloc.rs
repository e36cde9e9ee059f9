//! Unused memory of jemalloc 5.3, in 64-bit programs with pages of 4 KiB.
//!
//! jemalloc's memory consists of extents: slabs of regions of one size, single large blocks, and free
//! extents. [`base`] finds the memory of its records, [`tree`] the map from pages to records, which is
//! anchored in the data of an object. [`extents`] reads the records, [`caches`] the stacks of the threads'
//! caches, whose blocks look used. [`classes`] has the sizes of blocks.
//!
//! Nothing is found by symbols, which libraries rarely have. Instead, each structure has to agree with what
//! leads to it, in both directions. Records of other versions do not, and all of their memory stays a root.

mod base;
mod caches;
mod classes;
mod extents;
mod in_use;
mod layout;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::ops::Range;

use self::caches::Round;
use self::extents::{Extents, Kind, Region};
pub(super) use self::in_use::in_use;
pub(super) use self::layout::layout;
use super::{Allocator, Facts, Unused, agreement};
use crate::Memory;
use crate::heap::Heap;
use crate::ranges::common;
use memleak_process::maps::MapsEntry;

/// Structures of all jemallocs of a process.
struct Found {
    base: Vec<Range<u64>>,
    extents: Extents,
    /// Caches before the extents were read, and after.
    rounds: [Round; 2],
    /// Memory of the stacks of caches, ascending.
    stacks: Vec<Range<u64>>,
    /// Memory of the stacks of caches whose contents are unknown.
    unknown: Vec<Range<u64>>,
}

/// Reads the structures; `None` if there is no jemalloc.
fn search(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Found> {
    let base = base::find(memory, maps);
    let anchored = tree::find(memory, maps, &base);
    if anchored.trees.is_empty() {
        return None;
    }
    let read_extents = || Extents::read(memory, anchored.trees.iter(), &base);
    let threads = caches::find(memory, &anchored.data, &base, &read_extents);
    let before = threads.read(memory);
    let extents = read_extents();
    let after = threads.read(memory);
    let stacks = before.stacks(&after);
    let stacks: Vec<_> = stacks.filter_map(|at| extents.block_at(at)).collect();
    let unknown = caches::others(memory, &extents, &stacks);
    Some(Found {
        base,
        extents,
        rounds: [before, after],
        stacks,
        unknown,
    })
}

/// Finds the unused memory; nothing and no allocator if there is no jemalloc.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let Some(found) = search(memory, maps) else {
        return Unused::default();
    };
    let mut facts = Facts {
        allocator: Some(Allocator::Jemalloc),
        unknown_caches: found.unknown.len() as u64,
        ..Facts::default()
    };
    found.extents.add_ends(&mut facts.ends);
    let Some(usable) = agreement::usable(heap, &mut facts, |at| found.block_from(at)) else {
        return Unused {
            facts,
            ..Unused::default()
        };
    };
    let ranges = found.unused(&mut facts);
    let mut unused = Unused::new(ranges, usable, facts);
    unused.ranges = common(&unused.ranges, &super::seen::anonymous(maps));
    unused.cut_out(heap);
    unused
}

impl Found {
    /// Memory of the block that begins at an address.
    fn block_from(&self, address: u64) -> agreement::Found {
        match self.extents.of(address) {
            Some(extent) => extent
                .region_at(address)
                .filter(|region| region.start == address)
                .into(),
            None => agreement::Found::Elsewhere,
        }
    }

    /// Memory that holds no block.
    fn unused(&self, facts: &mut Facts) -> Vec<Range<u64>> {
        let mut ranges: Vec<_> = self.base.iter().map(base::records).collect();
        let mut arenas = BTreeSet::new();
        for extent in self.extents.iter() {
            arenas.insert(extent.arena());
            let Range { start, end } = extent.range();
            match extent.kind() {
                Kind::Free => {
                    facts.chunks += 1;
                    ranges.push(start..end);
                }
                Kind::Large => {
                    facts.chunks += 1;
                    let block = extent.block();
                    ranges.extend([start..block.start, block.end..end]);
                }
                Kind::Slab => {
                    let mut behind = start;
                    for Region { range, is_free } in self.extents.regions(extent) {
                        facts.chunks += 1;
                        behind = range.end;
                        if is_free {
                            ranges.push(range);
                        }
                    }
                    ranges.push(behind..end);
                }
            }
        }
        facts.arenas = arenas.len();
        let [before, after] = &self.rounds;
        for cached in before.common(after) {
            if let Some(range) = self.extents.cached(cached) {
                facts.cached += 1;
                ranges.push(range);
            }
        }
        ranges.extend(self.stacks.iter().cloned());
        ranges
    }
}
