//! Kinds of mappings.

use serde::{Deserialize, Serialize};
/// Use of a mapping, or of other memory that a process takes from the kernel.
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
    /// Stack of the first thread.
    MainStack,
    /// Heap of a runtime: Java, Go, V8, Python.
    ManagedHeap,
    /// Huge pages.
    HugePages,
    /// File in memory without a name, which lasts while it is open or mapped.
    MemoryFile,
    /// Open file, with what the kernel keeps for it: the queues of a socket, for example.
    Descriptor,
}

impl RegionKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Anonymous,
        Self::File,
        Self::Shared,
        Self::Reservation,
        Self::ThreadStack,
        Self::Allocator,
        Self::MainStack,
        Self::ManagedHeap,
        Self::HugePages,
        Self::MemoryFile,
        Self::Descriptor,
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
            Self::MainStack => "main_stack",
            Self::ManagedHeap => "managed_heap",
            Self::HugePages => "huge_pages",
            Self::MemoryFile => "memory_file",
            Self::Descriptor => "descriptor",
        }
    }

    /// Returns whether memory of this kind that is never given back is presumably a leak.
    pub const fn is_suspect(self) -> bool {
        matches!(
            self,
            Self::Anonymous | Self::File | Self::HugePages | Self::MemoryFile | Self::Descriptor
        )
    }
}
