//! Kinds of mappings.

use serde::{Deserialize, Serialize};
/// Use of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionKind {
    /// Private anonymous memory.
    Anonymous,
    /// Contents of a file.
    File,
    /// Anonymous memory that is shared with children.
    Shared,
    /// Inaccessible address space.
    Reservation,
    /// Stack of a thread.
    ThreadStack,
    /// Memory that an allocator takes from the kernel for its blocks, which are accounted without `--mmap`.
    Allocator,
}

impl RegionKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Anonymous,
        Self::File,
        Self::Shared,
        Self::Reservation,
        Self::ThreadStack,
        Self::Allocator,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::File => "file",
            Self::Shared => "shared",
            Self::Reservation => "reservation",
            Self::ThreadStack => "thread_stack",
            Self::Allocator => "allocator",
        }
    }

    /// Returns whether a mapping of this kind that is never unmapped is presumably a leak.
    pub const fn is_suspect(self) -> bool {
        matches!(self, Self::Anonymous | Self::File)
    }
}
