//! Reachability of blocks: from the roots of a process (its data, stacks and registers), and through pointers
//! from block to block. A block that cannot be reached is lost: the process can never get a pointer to it
//! back.
//!
//! [`heap`] indexes the blocks to judge, [`free`] finds memory of the allocator that holds no block,
//! [`ended`] the stacks of exited threads, [`roots`] the memory where the search begins. [`marking`] is one
//! pass from the roots through the blocks, [`passes`] combines several passes over a running process, and
//! [`lost`] tells definitely from indirectly lost blocks, like memcheck. [`holders`] finds what holds the
//! reachable blocks: [`chains`] that begin in [`places`]. [`inside`] classifies interior pointers, and
//! [`dominators`] computes what would be lost with a block. All of these are pure; [`reader`], [`pages`] and
//! [`copy`] read a process. [`judge`] puts the steps in order.
//!
//! Memory that a process holds need not be in blocks: [`layout`] says what an allocator's memory is used for,
//! [`fragmentation`] how much of it is free, and which blocks keep it.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "of a program, a comment is for what its names do not say; unwind-tables and leak-report have one everywhere"
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

pub mod bits;
pub mod chains;
pub mod copy;
pub mod dominators;
pub mod elsewhere;
pub mod ended;
pub mod fragmentation;
pub mod free;
pub mod heap;
pub mod holders;
pub mod inside;
pub mod judge;
pub mod layout;
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
    /// Reads the aligned words of `ranges`, which ascend and do not overlap. Calls `see` with each run of
    /// consecutive words and the address of its first. Leaves out memory that was never touched. Memory that
    /// cannot be read is left out, too, or shown as zeros.
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64]));

    /// Fills `words` from the aligned address `at` on. Returns false if not all of them could be read.
    fn read(&self, at: Avma, words: &mut [u64]) -> bool;
}
