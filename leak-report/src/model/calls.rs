//! Allocator calls reported one by one (`-t`), and mapping calls.

/// Which allocator calls are reported one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallTrace {
    /// None: the probes do nothing for it.
    #[default]
    Off,
    /// The outcome of each call.
    Ends,
    /// The beginning and the outcome of each call.
    All,
}

/// An event in the life of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A call of an allocation function begins.
    Begins,
    /// It returned a block.
    Allocated,
    /// It returned null.
    Failed,
    /// A block was freed or resized.
    Freed,
    /// A block that was allocated before the trace began was freed or resized.
    UnknownFreed,
}

/// A system call that changes mappings.
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
}

impl RegionCall {
    /// Every call.
    pub const ALL: [Self; 4] = [Self::Mmap, Self::Mremap, Self::Brk, Self::Munmap];

    /// Its name in reports, in the place of an allocator function's.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mmap => "mmap",
            Self::Mremap => "mremap",
            Self::Brk => "brk",
            Self::Munmap => "munmap",
        }
    }
}
