//! Mappings.

use serde::{Deserialize, Serialize};
/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionKind {
    /// Private memory of no file.
    Anonymous,
    /// A file's contents.
    File,
    /// Memory of no file that is shared with children.
    Shared,
    /// Address space that cannot be accessed.
    Reservation,
    /// A thread's stack.
    ThreadStack,
    /// What an allocator takes from the kernel for its blocks: those are accounted without `--mmap`.
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

    /// The word for it in reports.
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

    /// Whether one that is never unmapped is a leak, as far as can be told.
    pub const fn is_suspect(self) -> bool {
        matches!(self, Self::Anonymous | Self::File)
    }
}
