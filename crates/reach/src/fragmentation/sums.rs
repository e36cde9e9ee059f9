//! Sums of a fragmentation.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use super::pinning::Pinned;
use crate::layout::{Piece, Slab, Usage};

/// Maximum number of classes that are told apart. Allocators have less than 300; blocks of further sizes are
/// in the sums of the arenas only.
const MAX_CLASSES: usize = 1 << 12;

/// Bytes of an arena, or of all of an allocator's memory. All but the first are of held pages, and `blocks`,
/// `cached`, `own`, `unknown`, `between` and `whole` together are all that is held. `pinned` and `kept`
/// together are `cached`, `between` and `whole`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Address space, held or not.
    pub mapped: u64,
    pub held: u64,
    /// Blocks of the program, with their headers and what was rounded up.
    pub blocks: u64,
    /// Number of these blocks, held or not.
    pub block_count: u64,
    /// Blocks that were freed, in caches and in lists whose blocks are not joined.
    pub cached: u64,
    /// The allocator's own records.
    pub own: u64,
    /// Memory that was not understood.
    pub unknown: u64,
    /// Free memory on pages that something else is on, too.
    pub between: u64,
    /// Free memory on whole pages.
    pub whole: u64,
    /// Memory that the allocator's own call would give back to the kernel.
    pub trimmable: u64,
    /// Free and cached memory that stays because of blocks, or of the allocator's own records.
    pub pinned: u64,
    /// The part of `pinned` that stays because of the allocator's own records.
    pub pinned_by_own: u64,
    /// Free and cached memory that is not pinned.
    pub kept: u64,
}

impl Sums {
    /// Bytes of free memory that are held, without what is cached.
    pub fn free(&self) -> u64 {
        self.between + self.whole
    }

    pub(super) fn add_pinned(&mut self, pinned: &Pinned) {
        self.pinned += pinned.by_blocks + pinned.by_own;
        self.pinned_by_own += pinned.by_own;
    }
}

impl AddAssign for Sums {
    fn add_assign(&mut self, more: Self) {
        self.mapped += more.mapped;
        self.held += more.held;
        self.blocks += more.blocks;
        self.block_count += more.block_count;
        self.cached += more.cached;
        self.own += more.own;
        self.unknown += more.unknown;
        self.between += more.between;
        self.whole += more.whole;
        self.trimmable += more.trimmable;
        self.pinned += more.pinned;
        self.pinned_by_own += more.pinned_by_own;
        self.kept += more.kept;
    }
}

/// Slabs of blocks of one size. Bytes are of held pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    pub slabs: u64,
    pub held: u64,
    /// Number of blocks in use, held or not, and their held bytes.
    pub block_count: u64,
    pub blocks: u64,
    pub cached: u64,
    pub free: u64,
}

/// How an allocator's memory is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragmentation {
    /// Sums of each of the layout's arenas, by their indices.
    pub arenas: Vec<Sums>,
    /// Memory in no arena: blocks with mappings of their own, and the allocator's records of all arenas.
    pub separate: Sums,
    /// Slabs by the size of their blocks.
    pub classes: BTreeMap<u64, Class>,
}

impl Fragmentation {
    pub(super) fn new(arenas: usize) -> Self {
        Self {
            arenas: vec![Sums::default(); arenas],
            ..Self::default()
        }
    }

    /// Sums of all of the memory.
    pub fn total(&self) -> Sums {
        let mut total = self.separate;
        for sums in &self.arenas {
            total += *sums;
        }
        total
    }

    /// Arenas that hold free memory, by their indices, with the bytes of it: what fewer arenas could share.
    pub fn arenas_with_free(&self) -> impl Iterator<Item = (usize, u64)> {
        let arenas = self.arenas.iter().map(Sums::free).enumerate();
        arenas.filter(|(_, free)| *free > 0)
    }

    /// Sums of an arena, or of what is in none.
    pub(super) fn sums(&mut self, arena: Option<usize>) -> &mut Sums {
        arena
            .and_then(|arena| self.arenas.get_mut(arena))
            .unwrap_or(&mut self.separate)
    }

    fn class(&mut self, slab: Slab) -> Option<&mut Class> {
        let has_room = self.classes.len() < MAX_CLASSES || self.classes.contains_key(&slab.block);
        has_room.then(|| self.classes.entry(slab.block).or_default())
    }

    pub(super) fn count_slab(&mut self, slab: Slab) {
        if let Some(class) = self.class(slab) {
            class.slabs += 1;
        }
    }

    /// Adds a piece, of which `held` bytes are held, to its slab's class.
    pub(super) fn add_to_class(&mut self, piece: &Piece, held: u64) {
        let Some(class) = piece.slab.and_then(|slab| self.class(slab)) else {
            return;
        };
        class.held += held;
        match piece.usage {
            Usage::Block { .. } => {
                class.block_count += 1;
                class.blocks += held;
            }
            Usage::Cached | Usage::Unjoined => class.cached += held,
            Usage::Free | Usage::Top => class.free += held,
            Usage::Own | Usage::Unknown => {}
        }
    }

    /// Computes what is left of free memory once all that is pinned is known.
    pub(super) fn finish(&mut self) {
        for sums in self.arenas.iter_mut().chain([&mut self.separate]) {
            sums.kept = (sums.cached + sums.free()).saturating_sub(sums.pinned);
        }
    }
}
