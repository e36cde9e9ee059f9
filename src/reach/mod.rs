//! Blocks that a process can still reach: by pointers from where it begins to look (its data, stacks and registers), and from block to
//! block. What cannot be reached is lost: no pointer to it can ever come back.
//!
//! [`heap`] is the blocks in question, [`free`] the allocator's memory that holds none, [`ended`] stacks that nobody uses, [`roots`]
//! where a process begins to look, [`marking`] one pass from there through the blocks, [`passes`] what several passes over a running process say together, [`lost`]
//! how memcheck tells apart what is lost. [`holders`] finds who holds what is not, by [`chains`] from [`places`], [`inside`] by what pointers, and with [`dominators`]
//! what would be lost with it. All of these are pure; [`reader`], [`pages`] and [`copy`] read a process. [`judge`] puts them in
//! order.

pub mod bits;
pub mod chains;
pub mod copy;
pub mod dominators;
pub mod elsewhere;
pub mod ended;
pub mod free;
pub mod heap;
pub mod holders;
pub mod inside;
pub mod judge;
pub mod lost;
pub mod marking;
pub mod pages;
pub mod passes;
pub mod places;
mod ranges;
pub mod reader;
pub mod roots;
pub mod tags;
#[cfg(test)]
mod tests;

use std::ops::Range;

use unwind_tables::addr::Avma;

/// Memory of a process, as far as it can be read.
pub trait Memory {
    /// Reads the aligned words of `ranges`, which ascend and do not overlap, and calls `see` with the address of the first of some
    /// consecutive ones, and these. What cannot be read, or was never touched, is left out.
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64]));

    /// Fills `words` from the aligned address `at` on. Returns false if not all of them could be read.
    fn read(&self, at: Avma, words: &mut [u64]) -> bool;
}
