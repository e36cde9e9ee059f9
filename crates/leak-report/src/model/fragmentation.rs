//! Memory of a process's allocators: how much of it is in blocks, how much is free, and how much of that
//! stays because of blocks.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

/// Fragmentation of a process's memory, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fragmentation {
    /// Memory of each of its allocators.
    Known(Vec<AllocatorMemory>),
    /// Reason why nothing is known.
    Unknown(NotMeasured),
}

impl Fragmentation {
    /// Memory by allocator; `None` if it is not known.
    pub fn known(&self) -> Option<&[AllocatorMemory]> {
        match self {
            Self::Known(memory) => Some(memory),
            Self::Unknown(_) => None,
        }
    }

    /// Sum over all allocators; `None` if it is not known.
    pub fn total(&self) -> Option<HeldBytes> {
        Some(self.known()?.iter().map(|memory| memory.held).sum())
    }
}

/// Memory of one allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorMemory {
    /// The allocator.
    pub allocator: AllocatorName,
    /// Its memory by use.
    pub held: HeldBytes,
}

/// Allocator whose structures memleak can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorName {
    /// malloc of glibc.
    Glibc,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
    /// mallocng of musl.
    Musl,
    /// tcmalloc of gperftools.
    Tcmalloc,
}

impl AllocatorName {
    /// Every allocator.
    pub const ALL: [Self; 5] = [
        Self::Glibc,
        Self::Jemalloc,
        Self::Mimalloc,
        Self::Musl,
        Self::Tcmalloc,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
            Self::Musl => "musl",
            Self::Tcmalloc => "tcmalloc",
        }
    }

    /// Call by which a program has the allocator give free memory back to the kernel; `None` if there is
    /// none.
    pub const fn trim(self) -> Option<&'static str> {
        match self {
            Self::Glibc => Some("malloc_trim(0)"),
            Self::Jemalloc => Some("mallctl(\"arena.<i>.purge\")"),
            Self::Mimalloc => Some("mi_collect(true)"),
            Self::Musl => None,
            Self::Tcmalloc => Some("MallocExtension::ReleaseFreeMemory()"),
        }
    }
}

/// Bytes of an allocator's memory that are resident or swapped out. `blocks`, `cached`, `own`, `unknown`,
/// `between` and `whole` together are all that is `held`; the last four are parts of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBytes {
    /// All of it.
    pub held: u64,
    /// Blocks of the program, with their headers and what was rounded up.
    pub blocks: u64,
    /// Freed blocks in caches, and in lists whose blocks are not joined.
    pub cached: u64,
    /// The allocator's own records.
    pub own: u64,
    /// Memory that was not understood.
    pub unknown: u64,
    /// Free memory on pages that something else is on, too.
    pub between: u64,
    /// Free memory on whole pages.
    pub whole: u64,
    /// Free memory that the allocator's own call would give back to the kernel.
    pub trimmable: u64,
    /// Free and cached memory that stays because of blocks or of the allocator's own records.
    pub pinned: u64,
    /// Part of `pinned` that stays because of the allocator's own records.
    pub pinned_by_own: u64,
}

impl HeldBytes {
    /// Free memory, with what is cached.
    pub fn free(&self) -> u64 {
        self.cached
            .saturating_add(self.between)
            .saturating_add(self.whole)
    }

    /// Free memory that stays because of blocks.
    pub fn pinned_by_blocks(&self) -> u64 {
        self.pinned.saturating_sub(self.pinned_by_own)
    }
}

impl Add for HeldBytes {
    type Output = Self;

    /// Adds part by part; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            held: self.held.saturating_add(other.held),
            blocks: self.blocks.saturating_add(other.blocks),
            cached: self.cached.saturating_add(other.cached),
            own: self.own.saturating_add(other.own),
            unknown: self.unknown.saturating_add(other.unknown),
            between: self.between.saturating_add(other.between),
            whole: self.whole.saturating_add(other.whole),
            trimmable: self.trimmable.saturating_add(other.trimmable),
            pinned: self.pinned.saturating_add(other.pinned),
            pinned_by_own: self.pinned_by_own.saturating_add(other.pinned_by_own),
        }
    }
}

impl Sum for HeldBytes {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// Reason why the fragmentation of a process's memory is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotMeasured {
    /// It has no allocator whose structures are known.
    NoKnownAllocator,
    /// Its memory could not be read.
    Unreadable,
    /// It has ended.
    Ended,
}

impl NotMeasured {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::NoKnownAllocator, Self::Unreadable, Self::Ended];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoKnownAllocator => "no_known_allocator",
            Self::Unreadable => "unreadable",
            Self::Ended => "ended",
        }
    }

    /// Words in reports for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NoKnownAllocator => {
                "no allocator whose structures are known (glibc, musl, jemalloc, tcmalloc, mimalloc)"
            }
            Self::Unreadable => "the memory could not be read",
            Self::Ended => "ended before the report was made",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Free memory, and the part of it that blocks pin, are computed of the other parts, without overflow.
    #[test]
    fn sums() {
        let one = HeldBytes {
            held: 100,
            blocks: 40,
            cached: 10,
            own: 5,
            unknown: 5,
            between: 30,
            whole: 10,
            trimmable: 8,
            pinned: 35,
            pinned_by_own: 3,
        };
        assert_eq!((one.free(), one.pinned_by_blocks()), (50, 32));
        let both = Fragmentation::Known(vec![
            AllocatorMemory {
                allocator: AllocatorName::Glibc,
                held: one,
            },
            AllocatorMemory {
                allocator: AllocatorName::Jemalloc,
                held: HeldBytes {
                    pinned: u64::MAX,
                    ..one
                },
            },
        ]);
        let total = both.total().expect("known");
        assert_eq!((total.held, total.pinned, total.free()), (200, u64::MAX, 100));
        assert_eq!(Fragmentation::Unknown(NotMeasured::Ended).total(), None);
    }
}
