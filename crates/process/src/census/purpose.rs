//! Purposes of memory, of which each kind has one: how far the ways differ by which a process takes memory.

use super::kind::Kind;

/// Purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Heaps of allocators.
    Heap,
    /// Stack of the first thread.
    MainStack,
    /// Stacks of threads that run.
    LiveStacks,
    /// Stacks of threads that have ended.
    EndedStacks,
    /// Mappings of the program, for its own purposes.
    Mappings,
    /// Memory that other processes can map.
    Shared,
    /// Pages of files, code and variables of the program among them, and of devices.
    Files,
    /// Heaps of runtimes.
    Managed,
}

impl Kind {
    /// Purpose of memory of this kind.
    pub fn purpose(self) -> Purpose {
        match self {
            Self::BrkHeap
            | Self::GlibcArena
            | Self::GlibcBlocks
            | Self::MuslGroups
            | Self::NamedHeap
            | Self::KnownHeap
            | Self::LibraryHeap => Purpose::Heap,
            Self::MainStack => Purpose::MainStack,
            Self::RunningStack => Purpose::LiveStacks,
            Self::UnjoinedStack | Self::CachedStack | Self::EndedStack => Purpose::EndedStacks,
            Self::LoaderData
            | Self::ProgramData
            | Self::ProgramCode
            | Self::MappedFile
            | Self::Device
            | Self::KernelPages => Purpose::Files,
            Self::JvmHeap
            | Self::JvmOther
            | Self::PythonArenas
            | Self::GoHeap
            | Self::GoRuntime
            | Self::V8Heap
            | Self::BrowserHeaps
            | Self::DotNet => Purpose::Managed,
            Self::SharedAnonymous | Self::MemoryFile | Self::SystemV | Self::SharedFile => Purpose::Shared,
            Self::GeneratedCode
            | Self::DatabaseBuffers
            | Self::Hugetlb
            | Self::Named
            | Self::Reserved
            | Self::Unexplained => Purpose::Mappings,
        }
    }
}
