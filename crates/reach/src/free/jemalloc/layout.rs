//! Uses of all memory of jemalloc.
//!
//! Free extents count as free, whether their pages are dirty, perhaps given back (muzzy), or given back
//! (retained): which of them the process still holds is known by its pages.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::records::range;
use super::extents::{Extent, Extents, Kind, Region};
use super::{Allocator, Found, search};
use crate::Memory;
use crate::layout::{Arena, Division, Layout, Piece, Pieces, Slab, Usage};
use crate::ranges::joined;
use memleak_process::maps::MapsEntry;

/// Reads the layout; `None` if there is no jemalloc.
pub(in super::super) fn layout(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Layout> {
    let Found {
        base,
        mut extents,
        rounds,
        stacks,
        unknown,
    } = search(memory, maps)?;
    let [before, after] = &rounds;
    let cached = before.common(after).filter_map(|cached| extents.cached(cached));
    let mut cached: Vec<u64> = cached.map(|block| block.start).collect();
    cached.sort_unstable();
    let mut own: Vec<u64> = stacks.iter().chain(&unknown).map(|stack| stack.start).collect();
    own.sort_unstable();
    extents.sort_by_arena();
    let mut ranges: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
    for extent in extents.iter() {
        let ranges = ranges.entry(extent.arena()).or_default();
        let next = extent.range();
        match ranges.last_mut().filter(|last| last.end == next.start) {
            Some(last) => last.end = next.end,
            None => ranges.push(next),
        }
    }
    let numbers = ranges.keys().copied().collect();
    let arena = |(number, ranges)| Arena {
        name: format!("arena {number}"),
        ranges,
        gives_top: None,
    };
    Some(Layout {
        allocator: Allocator::Jemalloc,
        division: Division::Extents,
        arenas: ranges.into_iter().map(arena).collect(),
        unknown: 0,
        refused: extents.malformed(),
        pieces: Box::new(Described {
            extents,
            numbers,
            cached,
            own,
            base: joined(base.iter().map(range).collect())
                .iter()
                .map(|base| base.start.get()..base.end.get())
                .collect(),
        }),
    })
}

struct Described {
    /// By arena.
    extents: Extents,
    /// Numbers of the arenas, ascending.
    numbers: Vec<u64>,
    /// Addresses of blocks in threads' caches, and of the memory of these, ascending.
    cached: Vec<u64>,
    own: Vec<u64>,
    base: Vec<Range<u64>>,
}

impl Pieces for Described {
    fn visit(&self, see: &mut dyn FnMut(&Piece)) {
        for extent in self.extents.iter() {
            let piece = Piece {
                range: extent.range(),
                usage: Usage::Free,
                arena: self.numbers.binary_search(&extent.arena()).ok(),
                slab: None,
            };
            match extent.kind() {
                Kind::Free => see(&piece),
                Kind::Large => {
                    let usage = self.usage(extent.block().start);
                    see(&Piece { usage, ..piece });
                }
                Kind::Slab => self.visit_slab(extent, piece, see),
            }
        }
        for base in &self.base {
            see(&Piece {
                range: base.clone(),
                usage: Usage::Own,
                arena: None,
                slab: None,
            });
        }
    }
}

impl Described {
    /// Shows the regions of a slab, whose memory is that of `whole`.
    fn visit_slab(&self, extent: &Extent, whole: Piece, see: &mut dyn FnMut(&Piece)) {
        let Range { start, end } = whole.range;
        let slab = Some(Slab {
            start,
            bytes: end - start,
            block: extent.block_size(),
        });
        let mut piece = Piece { slab, ..whole };
        let mut behind = start;
        for Region { range, is_free } in self.extents.regions(extent) {
            behind = range.end;
            piece.usage = match is_free {
                true => Usage::Free,
                false => self.usage(range.start),
            };
            piece.range = range;
            see(&piece);
        }
        if behind < end {
            piece.range = behind..end;
            piece.usage = Usage::Own;
            see(&piece);
        }
    }

    /// Usage of a block that is in use by its extent.
    fn usage(&self, address: u64) -> Usage {
        if self.cached.binary_search(&address).is_ok() {
            return Usage::Cached;
        }
        match self.own.binary_search(&address) {
            Ok(_) => Usage::Own,
            Err(_) => Usage::Block { address },
        }
    }
}
