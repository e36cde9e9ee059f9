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
    /// Growth since the attach of the parts that the trace does not follow; `None` with `--mmap` and
    /// `--faults`, and for forked processes, some of whose memory is older than their trace.
    #[serde(default)]
    pub growth_elsewhere: Option<Elsewhere>,
}

/// Growth of the parts of a process's resident memory that the trace does not follow, in bytes; 0 for parts
/// that shrank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elsewhere {
    /// Growth of [`Parts::thread_stacks`].
    pub thread_stacks: u64,
    /// Growth of [`Parts::files`].
    pub files: u64,
    /// Growth of [`Parts::shared`].
    pub shared: u64,
    /// Growth of memory outside all other parts: mostly memory that the program mapped itself.
    pub unexplained: u64,
}

impl Elsewhere {
    /// Sum of all parts except files: the kernel reclaims their pages when it needs memory, and a running
    /// program touches more and more of them.
    pub fn bytes(&self) -> u64 {
        let parts = [self.thread_stacks, self.shared, self.unexplained];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl Parts {
    /// Minimum bytes of growth elsewhere, and of free memory, to be reported. Starting threads and loading
    /// libraries takes less.
    const MIN_TOLD: u64 = 1 << 20;

    /// Returns the growth elsewhere if it is worth reporting and larger than the tracked memory, so that it,
    /// not tracked memory, makes the process grow.
    pub fn grows_elsewhere(&self) -> Option<Elsewhere> {
        let elsewhere = self.growth_elsewhere?;
        let bytes = elsewhere.bytes();
        (bytes >= Self::MIN_TOLD && bytes > self.tracked).then_some(elsewhere)
    }

    /// Returns how much the allocator's mappings have grown, if that is worth reporting, in a process without
    /// any call of a probed function: another function allocates there, by `brk` for example.
    pub fn grows_without_calls(&self) -> Option<u64> {
        self.growth_elsewhere?;
        (self.slack_at_least >= Self::MIN_TOLD).then_some(self.slack_at_least)
    }

    /// Returns the bytes that are free in the allocator, or its own, if they are worth reporting and more
    /// than half of the resident memory.
    pub fn mostly_free(&self) -> Option<u64> {
        let free = self.slack_at_least;
        (free >= Self::MIN_TOLD && free > self.rss / 2).then_some(free)
    }
}
