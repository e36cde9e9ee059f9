//! Blocks one by one, as `-a` lists them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use unwind_tables::addr::Avma;

use super::Weight;

/// How many blocks are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    /// Blocks of one stack: its largest are listed.
    pub of_a_stack: usize,
    /// Blocks of all stacks together, whichever are found first. Each takes 40 bytes while a report is made.
    pub in_all: usize,
}

/// A block in a list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListedBlock {
    /// Where it begins.
    pub address: Avma,
    /// The bytes that were asked for.
    pub size: u64,
    /// How old it was.
    pub age: Duration,
    /// How many blocks it stands for.
    pub weight: Weight,
}

/// The blocks of a stack, the largest first, those of one size by their addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockList {
    /// Those that there was room for.
    pub listed: Vec<ListedBlock>,
    /// How many more were found.
    pub left_out: u64,
}

impl BlockList {
    /// Adds the blocks of a list that follows.
    pub fn append(&mut self, other: Self) {
        self.listed.extend(other.listed);
        self.left_out = self.left_out.saturating_add(other.left_out);
    }
}
