//! Allocator calls reported one by one (`-t`), and mapping calls.

/// Which allocator calls are reported one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallTrace {
    /// None; the probes do no work for it.
    #[default]
    Off,
    /// The outcome of each call.
    Ends,
    /// The beginning and the outcome of each call.
    All,
}

/// Event in the life of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// An allocation function was called.
    Begins,
    /// An allocation function returned a block.
    Allocated,
    /// An allocation function returned null.
    Failed,
    /// A block was freed or resized.
    Freed,
    /// A block allocated before the attach was freed or resized.
    UnknownFreed,
}

/// System call that changes mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionCall {
    /// `mmap`
    Mmap,
    /// `mremap`
    Mremap,
    /// `brk`
    Brk,
    /// `munmap`
    Munmap,
    /// `madvise` that discards pages
    Madvise,
}

impl RegionCall {
    /// Every call.
    pub const ALL: [Self; 5] = [Self::Mmap, Self::Mremap, Self::Brk, Self::Munmap, Self::Madvise];

    /// Name in reports, used in place of an allocator function.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mmap => "mmap",
            Self::Mremap => "mremap",
            Self::Brk => "brk",
            Self::Munmap => "munmap",
            Self::Madvise => "madvise",
        }
    }
}
