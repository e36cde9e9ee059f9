//! Blocks in use, by mimalloc's own structures.

use super::super::unused::listed;
use super::search;
use crate::Memory;
use crate::heap::Block;
use crate::layout::{Pieces, Usage};
use memleak_process::maps::MapsEntry;

/// Lists all blocks in use; `None` if there is no mimalloc. A block that the program has aligned is listed
/// from its start, which can be before the address that the program has. Pages with lists that are not known
/// are left out.
pub(in super::super) fn in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Vec<Block>> {
    let found = search(memory, maps)?;
    let mut blocks = Vec::new();
    found.visit(&mut |piece| {
        if let Usage::Block { address } = piece.usage {
            blocks.push(listed(address, piece.range.end - address));
        }
    });
    Some(blocks)
}
