//! Blocks in use, by tcmalloc's own structures.

use super::super::unused::listed;
use super::{Found, search};
use crate::Memory;
use crate::heap::Block;
use crate::layout::{Pieces, Usage};
use memleak_process::maps::MapsEntry;

/// Lists all blocks in use; `None` if there is no tcmalloc.
pub(in super::super) fn in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Vec<Block>> {
    let found = search(memory, maps);
    (!found.is_empty()).then(|| found.iter().flat_map(Found::in_use).collect())
}

impl Found {
    /// Blocks that were in no list when all of these were read; none of classes with lists that are not
    /// known.
    fn in_use(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        self.visit(&mut |piece| {
            if let Usage::Block { address } = piece.usage {
                blocks.push(listed(address, piece.range.end - address));
            }
        });
        blocks
    }
}
