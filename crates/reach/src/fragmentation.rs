//! Fragmentation of an allocator's memory: how much of the memory that a process holds is in blocks, how much
//! is free, how much of that the allocator's own call would give back, and which blocks keep the rest.
//!
//! Pure: pieces of the memory in ([`Layout`]), the pages that the process holds, sums out. A page is held if
//! it is resident or swapped out. Memory that was never touched, or was given back, costs nothing and counts
//! only as mapped. Huge pages count as the pages that they are divided into: a call that gives back a part of
//! one makes the kernel divide it, and the process no longer holds that part, though the machine may get it
//! back only later.
//!
//! Free memory is pinned if it stays because of blocks:
//! * in a slab with a block in use, all of it, by the slab's blocks in use, in proportion to their sizes;
//! * in a heap of chunks, a run of free chunks between two blocks, half by each, if less than
//!   [`LEAST_RETURNED`] bytes of it are held; of a longer run, and of free memory at the end of an arena,
//!   only the parts of pages that a neighbouring block is on, by that block.

mod chunks;
mod held;
mod pinning;
mod slabs;
mod sums;
#[cfg(test)]
mod tests;
mod within;

use std::ops::Range;

use unwind_tables::addr::Avma;

pub use self::chunks::LEAST_RETURNED;
use self::chunks::{Chunks, Joined};
use self::held::{Held, pages_within};
pub use self::pinning::Pinning;
use self::slabs::Slabs;
pub use self::sums::{Class, Fragmentation, Sums};
pub use self::within::{Within, shares};
use crate::layout::{Division, Layout, Piece, Usage};

/// Sums up a layout's pieces, of which the process holds `pages`, ascending runs. Calls `see` with each
/// block.
pub fn measure(layout: &Layout, pages: &[Range<Avma>], see: &mut dyn FnMut(&Pinning)) -> Fragmentation {
    let mut measure = Measure {
        layout,
        held: Held::new(pages),
        found: Fragmentation::new(layout.arenas.len()),
        arena: None,
        free: None,
        joined: Joined::default(),
        chunks: Chunks::default(),
        slabs: Slabs::default(),
        see,
    };
    layout.pieces.visit(&mut |piece| measure.add(piece));
    measure.finish()
}

struct Measure<'a> {
    layout: &'a Layout,
    held: Held<'a>,
    found: Fragmentation,
    /// Arena of the last piece.
    arena: Option<usize>,
    /// Free memory that ends with the last piece.
    free: Option<Range<u64>>,
    joined: Joined,
    chunks: Chunks,
    slabs: Slabs,
    see: &'a mut dyn FnMut(&Pinning),
}

impl Measure<'_> {
    fn add(&mut self, piece: &Piece) {
        if piece.range.is_empty() {
            return;
        }
        if piece.arena != self.arena {
            self.end_arena();
            self.arena = piece.arena;
        }
        let bytes = piece.range.end - piece.range.start;
        let held = self.held.bytes(&piece.range);
        self.add_free(piece);
        self.found.add_to_class(piece, held);
        let sums = self.found.sums(self.arena);
        sums.mapped += bytes;
        sums.held += held;
        match piece.usage {
            Usage::Block { .. } => {
                sums.blocks += held;
                sums.block_count += 1;
            }
            Usage::Cached | Usage::Unjoined => sums.cached += held,
            // The parts of it follow when the end of the free memory is known.
            Usage::Free | Usage::Top => {}
            Usage::Own => sums.own += held,
            Usage::Unknown => sums.unknown += held,
        }
        let began = self.slabs.begin(piece, sums, self.see);
        if let Some(slab) = began {
            self.found.count_slab(slab);
        }
        match piece.slab {
            Some(_) => self.slabs.add(piece, held),
            None => self.add_outside(piece, held),
        }
    }

    /// Adds a piece that is in no slab.
    fn add_outside(&mut self, piece: &Piece, held: u64) {
        let gives_top = self.gives_top();
        let sums = self.found.sums(self.arena);
        let is_free = piece.usage.is_free();
        match self.layout.division {
            Division::Chunks => {
                sums.trimmable += self.joined.add(piece, gives_top, &mut self.held);
                sums.add_pinned(&self.chunks.add(piece, held, &mut self.held, self.see));
            }
            Division::Extents | Division::Slots => {
                if is_free && self.layout.division == Division::Extents {
                    sums.trimmable += held;
                }
                slabs::see_outside(piece, self.see);
            }
        }
    }

    /// Continues or ends the free memory before a piece.
    fn add_free(&mut self, piece: &Piece) {
        let is_free = piece.usage.is_free();
        match &mut self.free {
            Some(free) if is_free && free.end == piece.range.start => free.end = piece.range.end,
            Some(_) | None => {
                self.end_free();
                self.free = is_free.then(|| piece.range.clone());
            }
        }
    }

    fn end_free(&mut self) {
        if let Some(free) = self.free.take() {
            let whole = self.held.bytes(&pages_within(&free));
            let all = self.held.bytes(&free);
            let sums = self.found.sums(self.arena);
            sums.whole += whole;
            sums.between += all - whole;
        }
    }

    fn end_arena(&mut self) {
        self.end_free();
        let gives_top = self.gives_top();
        let sums = self.found.sums(self.arena);
        sums.trimmable += self.joined.end(gives_top, &mut self.held);
        sums.add_pinned(&self.chunks.end(&mut self.held, self.see));
        self.slabs.end(sums, self.see);
    }

    fn gives_top(&self) -> Option<u64> {
        self.layout.arenas.get(self.arena?)?.gives_top
    }

    fn finish(mut self) -> Fragmentation {
        self.end_arena();
        self.found.finish();
        self.found
    }
}
