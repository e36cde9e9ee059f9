//! Free memory that stays, and what it stays because of.

use std::ops::AddAssign;

/// A block, and the free memory that it pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinning {
    /// Address that the program has.
    pub address: u64,
    /// End of its memory.
    pub end: u64,
    /// Bytes of the block with its header and what was rounded up, held or not.
    pub bytes: u64,
    /// Bytes of free held memory that stay because of it.
    pub pinned: u64,
}

/// Held free memory that stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pinned {
    pub by_blocks: u64,
    pub by_own: u64,
}

impl AddAssign for Pinned {
    fn add_assign(&mut self, more: Self) {
        self.by_blocks += more.by_blocks;
        self.by_own += more.by_own;
    }
}
