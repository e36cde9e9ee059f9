//! Free memory of slabs, which stays because of the blocks in them.

use super::pinning::Pinning;
use super::sums::Sums;
use crate::layout::{Piece, Slab, Usage};

/// Slabs that have begun, each in a block of the one before it.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    open: Vec<Open>,
}

/// A slab up to the last piece.
#[derive(Debug)]
struct Open {
    slab: Slab,
    /// Blocks in use, with what they pin of slabs within this one.
    used: Vec<Pinning>,
    /// Held bytes of free and cached blocks.
    free: u64,
}

impl Slabs {
    /// Ends slabs that do not contain the piece, and begins its slab, which is returned if it is new.
    pub(super) fn begin(
        &mut self,
        piece: &Piece,
        sums: &mut Sums,
        see: &mut dyn FnMut(&Pinning),
    ) -> Option<Slab> {
        let is_in = |open: &Open| {
            let (start, end) = (open.slab.start, open.slab.start.saturating_add(open.slab.bytes));
            match piece.slab {
                Some(slab) => open.slab == slab || start < slab.start && slab.start < end,
                None => piece.range.start < end,
            }
        };
        while self.open.last().is_some_and(|last| !is_in(last)) {
            self.close(sums, see);
        }
        let is_new = |slab: &Slab| self.open.last().is_none_or(|last| last.slab != *slab);
        let slab = piece.slab.filter(is_new)?;
        self.open.push(Open {
            slab,
            used: Vec::new(),
            free: 0,
        });
        Some(slab)
    }

    /// Adds a piece of the last slab, of which `held` bytes are held.
    pub(super) fn add(&mut self, piece: &Piece, held: u64) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        match piece.usage {
            Usage::Block { address } => open.used.push(Pinning {
                address,
                end: piece.range.end,
                bytes: piece.range.end - piece.range.start,
                pinned: 0,
            }),
            Usage::Cached | Usage::Unjoined | Usage::Free | Usage::Top => open.free += held,
            Usage::Own | Usage::Unknown => {}
        }
    }

    /// Ends all slabs.
    pub(super) fn end(&mut self, sums: &mut Sums, see: &mut dyn FnMut(&Pinning)) {
        while !self.open.is_empty() {
            self.close(sums, see);
        }
    }

    /// Ends the last slab. Its blocks are blocks of the slab around it, too, if there is one.
    fn close(&mut self, sums: &mut Sums, see: &mut dyn FnMut(&Pinning)) {
        let Some(mut last) = self.open.pop() else {
            return;
        };
        sums.pinned += last.charge();
        match self.open.last_mut() {
            Some(around) => around.used.append(&mut last.used),
            None => last.used.iter().for_each(see),
        }
    }
}

impl Open {
    /// Charges free memory to the blocks in use, by their sizes. Returns the bytes that were charged.
    fn charge(&mut self) -> u64 {
        let all: u128 = self.used.iter().map(|block| u128::from(block.bytes)).sum();
        if all == 0 {
            return 0;
        }
        // Up to and including each block, so that roundings do not add up.
        let mut before: u128 = 0;
        let mut charged = 0;
        for block in &mut self.used {
            before += u128::from(block.bytes);
            let up_to = u128::from(self.free) * before / all;
            let up_to = u64::try_from(up_to).unwrap_or(self.free);
            block.pinned += up_to - charged;
            charged = up_to;
        }
        charged
    }
}

/// Shows a block that is in no slab and has whole pages, and so pins nothing.
pub(super) fn see_outside(piece: &Piece, see: &mut dyn FnMut(&Pinning)) {
    if let Some(address) = piece.usage.address() {
        see(&Pinning {
            address,
            end: piece.range.end,
            bytes: piece.range.end - piece.range.start,
            pinned: 0,
        });
    }
}
