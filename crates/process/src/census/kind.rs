//! Kinds of memory, and sums of them.

use std::collections::BTreeMap;

use crate::smaps::Amounts;

/// Purpose of a mapping. Each mapping has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The heap that grows by `brk`.
    BrkHeap,
    /// An arena of glibc's `malloc`, other than the first.
    GlibcArena,
    /// Large blocks of glibc's `malloc`, each with a mapping of its own.
    GlibcBlocks,
    /// Slots of musl's `malloc`.
    MuslGroups,
    /// Memory that the kernel knows by the name of an allocator.
    NamedHeap,
    /// Memory of an allocator that the caller knows.
    KnownHeap,
    /// Memory without another purpose in a process that has loaded an allocator's library.
    LibraryHeap,
    /// Stack of the first thread.
    MainStack,
    /// Stack of a thread that runs.
    RunningStack,
    /// Stack of a thread that has ended, and that the program has neither joined nor detached.
    UnjoinedStack,
    /// Stack of a thread that has ended, kept by the C library for the next one.
    CachedStack,
    /// Stack of a thread that has ended; it is not known whether the program still has to join it.
    EndedStack,
    /// Data that the dynamic loader makes: thread-local storage of the first thread, records of libraries.
    LoaderData,
    /// Variables of the program and its libraries: `.data`, `.bss`, and what was relocated.
    ProgramData,
    /// Code and constants of the program and its libraries.
    ProgramCode,
    /// Other files.
    MappedFile,
    /// Code made at run time.
    GeneratedCode,
    /// Heap of a Java virtual machine.
    JvmHeap,
    /// Other memory that a Java virtual machine has reserved: classes, tables of its collector, and a heap
    /// whose references have 64 bits.
    JvmOther,
    /// Arenas of Python's allocator for small objects.
    PythonArenas,
    /// Heap of Go.
    GoHeap,
    /// Records of Go's runtime.
    GoRuntime,
    /// Heap of V8.
    V8Heap,
    /// Heaps of Chromium in reserved address space: `PartitionAlloc`, `Oilpan`.
    BrowserHeaps,
    /// Memory that the runtime of .NET has reserved.
    DotNet,
    /// Buffers of a database, in a server that is known to map them itself.
    DatabaseBuffers,
    /// Shared memory without a name.
    SharedAnonymous,
    /// Files of `memfd_create`.
    MemoryFile,
    /// Segments of System V shared memory.
    SystemV,
    /// Files of a file system in memory, in `/dev/shm` for example.
    SharedFile,
    /// Huge pages of hugetlbfs.
    Hugetlb,
    /// Memory of devices.
    Device,
    /// Pages that the kernel provides: vDSO, rings of `io_uring` and of perf events.
    KernelPages,
    /// Memory to which the program has given a name.
    Named,
    /// Address space without access and without pages.
    Reserved,
    /// Anonymous memory of no known purpose.
    Unexplained,
}

/// Evidence for a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// A name that the kernel gives, or structures in the memory that agree with the mapping.
    Known,
    /// Shape, place or neighbours of the mapping, in a process that is known to have such memory.
    Likely,
}

impl Kind {
    /// How sure it is that a mapping of this kind is one.
    pub fn certainty(self) -> Certainty {
        match self {
            Self::BrkHeap
            | Self::GlibcArena
            | Self::GlibcBlocks
            | Self::MuslGroups
            | Self::NamedHeap
            | Self::KnownHeap
            | Self::MainStack
            | Self::RunningStack
            | Self::UnjoinedStack
            | Self::CachedStack
            | Self::EndedStack
            | Self::ProgramData
            | Self::ProgramCode
            | Self::MappedFile
            | Self::GeneratedCode
            | Self::PythonArenas
            | Self::V8Heap
            | Self::SharedAnonymous
            | Self::MemoryFile
            | Self::SystemV
            | Self::SharedFile
            | Self::Hugetlb
            | Self::Device
            | Self::KernelPages
            | Self::Named
            | Self::Reserved => Certainty::Known,
            Self::LibraryHeap
            | Self::LoaderData
            | Self::JvmHeap
            | Self::JvmOther
            | Self::GoHeap
            | Self::GoRuntime
            | Self::BrowserHeaps
            | Self::DotNet
            | Self::DatabaseBuffers
            | Self::Unexplained => Certainty::Likely,
        }
    }

    /// Name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::BrkHeap => "heap (brk)",
            Self::GlibcArena => "arenas of malloc",
            Self::GlibcBlocks => "large blocks of malloc",
            Self::MuslGroups => "malloc of musl",
            Self::NamedHeap => "heap, by its name",
            Self::KnownHeap => "heap of a known allocator",
            Self::LibraryHeap => "heap of a loaded allocator",
            Self::MainStack => "main stack",
            Self::RunningStack => "stacks of threads",
            Self::UnjoinedStack => "stacks of threads that ended unjoined",
            Self::CachedStack => "stacks kept for new threads",
            Self::EndedStack => "stacks of threads that ended",
            Self::LoaderData => "data of the loader",
            Self::ProgramData => "variables",
            Self::ProgramCode => "code and constants",
            Self::MappedFile => "mapped files",
            Self::GeneratedCode => "generated code",
            Self::JvmHeap => "heap of Java",
            Self::JvmOther => "other memory of the JVM",
            Self::PythonArenas => "small objects of Python",
            Self::GoHeap => "heap of Go",
            Self::GoRuntime => "records of Go",
            Self::V8Heap => "heap of JavaScript",
            Self::BrowserHeaps => "heaps of the browser",
            Self::DotNet => "memory of .NET",
            Self::DatabaseBuffers => "buffers of the database",
            Self::SharedAnonymous => "shared memory without a name",
            Self::MemoryFile => "memfd",
            Self::SystemV => "System V shared memory",
            Self::SharedFile => "files in memory",
            Self::Hugetlb => "hugetlb pages",
            Self::Device => "devices",
            Self::KernelPages => "pages of the kernel",
            Self::Named => "named by the program",
            Self::Reserved => "reserved address space",
            Self::Unexplained => "unexplained",
        }
    }
}

/// Memory of a process by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds(BTreeMap<Kind, Amounts>);

impl Kinds {
    /// Adds memory of a kind.
    pub(super) fn add(&mut self, kind: Kind, amounts: &Amounts) {
        self.0.entry(kind).or_default().add(amounts);
    }

    /// Memory of one kind.
    pub fn get(&self, kind: Kind) -> Amounts {
        self.0.get(&kind).copied().unwrap_or_default()
    }

    /// All kinds that the process has.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, &Amounts)> {
        self.0.iter().map(|(kind, amounts)| (*kind, amounts))
    }

    /// Sum of all kinds, which is the process's.
    pub fn total(&self) -> Amounts {
        let mut total = Amounts::default();
        self.0.values().for_each(|amounts| total.add(amounts));
        total
    }
}
