//! A process's resident memory.

use serde::{Deserialize, Serialize};
/// The parts of a process's resident memory, in bytes. All but `not_resident` add up to `rss`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// All of it.
    pub rss: u64,
    /// What the trace says is live, as far as that can be resident.
    pub tracked: u64,
    /// In the allocator's mappings: from before the attach, at most.
    pub before_attach_at_most: u64,
    /// In the allocator's mappings: free, or the allocator's own, at least.
    pub slack_at_least: u64,
    /// Stacks of threads.
    pub thread_stacks: u64,
    /// Files, what was written to private copies of them included.
    pub files: u64,
    /// Memory of no file that other processes can share.
    pub shared: u64,
    /// Everything else: what the program mapped by itself, above all.
    pub unexplained: u64,
    /// What the trace says is live and can not be resident: it was never touched, or is swapped out.
    pub not_resident: u64,
}
