//! A process's resident memory.

use serde::{Deserialize, Serialize};
/// Parts of a process's resident memory, in bytes. All but `not_resident` add up to `rss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Resident set size.
    pub rss: u64,
    /// Outstanding memory of the trace, as far as it can be resident.
    pub tracked: u64,
    /// Upper bound of the memory in the allocator's mappings that is from before the attach.
    pub before_attach_at_most: u64,
    /// Lower bound of the memory in the allocator's mappings that is free or the allocator's own.
    pub slack_at_least: u64,
    /// Stacks of threads.
    pub thread_stacks: u64,
    /// Mapped files, including private copies that were written to.
    pub files: u64,
    /// Memory without a file that other processes can share.
    pub shared: u64,
    /// Remainder: mostly memory that the program mapped itself.
    pub unexplained: u64,
    /// Outstanding memory of the trace that cannot be resident: never touched, or swapped out.
    pub not_resident: u64,
}
