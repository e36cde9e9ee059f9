//! A process's resident memory.

use serde::{Deserialize, Serialize};

/// Parts of a process's resident memory, in bytes. `tracked` to `unexplained` add up to `rss`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// All other memory: mostly what the program mapped itself, and heaps of language runtimes.
    pub unexplained: u64,
    /// Outstanding memory of the trace that cannot be resident: never touched, or swapped out.
    pub not_resident: u64,
    /// Growth since the attach of the parts that the trace does not follow; `None` with `--mmap` and
    /// `--faults`, and for forked processes, some of whose memory is older than their trace.
    #[serde(default)]
    pub growth_elsewhere: Option<Elsewhere>,
    /// All memory outside the allocator by kind, in their order. They add up to `thread_stacks`, `files`,
    /// `shared` and `unexplained`. Empty if a version recorded it that did not know kinds.
    #[serde(default)]
    pub kinds: Vec<KindBytes>,
    /// The largest shared memory that has a name, at most [`Self::MAX_NAMED`], the largest first.
    #[serde(default)]
    pub named_shared: Vec<NamedBytes>,
    /// Memory that is not part of `rss`.
    #[serde(default)]
    pub beside: Beside,
}

/// Purpose of resident memory outside the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Stacks of threads that run, and of the first one.
    RunningStacks,
    /// Stacks of threads that have ended, and that the program has neither joined nor detached.
    UnjoinedStacks,
    /// Stacks of threads that have ended, which the C library keeps for new ones.
    CachedStacks,
    /// Stacks of threads that have ended; it is not known whether the program still has to join them.
    EndedStacks,
    /// The program, libraries and mapped files, with what was written to private copies of them.
    Files,
    /// Variables of the program and its libraries beyond their files, and the loader's data.
    ProgramData,
    /// Code made at run time.
    GeneratedCode,
    /// Memory that other processes can share, without a file on a disk.
    Shared,
    /// Heap of Java.
    JavaHeap,
    /// Other memory of a Java virtual machine.
    JavaOther,
    /// Arenas of Python for small objects.
    PythonArenas,
    /// Heap of Go.
    GoHeap,
    /// Records of Go's runtime.
    GoRuntime,
    /// Heap of JavaScript.
    V8Heap,
    /// Heaps of a browser beside that of JavaScript.
    BrowserHeaps,
    /// Memory of the runtime of .NET.
    DotNet,
    /// Buffers of a database server.
    DatabaseBuffers,
    /// Mappings of an allocator that have no blocks of the trace.
    AllocatorMappings,
    /// Pages of zeros in huge pages, estimated: they were never used, or cleared.
    HugeZeros,
    /// Pages that the kernel provides.
    KernelPages,
    /// Other mappings of the program.
    Mappings,
    /// Memory of no known purpose.
    Unexplained,
}

/// Part of [`Parts`] that a [`MemoryKind`] belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryGroup {
    /// [`Parts::thread_stacks`].
    ThreadStacks,
    /// [`Parts::files`].
    Files,
    /// [`Parts::shared`].
    Shared,
    /// [`Parts::unexplained`].
    Unexplained,
}

impl MemoryKind {
    /// Every kind, in their order.
    pub const ALL: [Self; 22] = [
        Self::RunningStacks,
        Self::UnjoinedStacks,
        Self::CachedStacks,
        Self::EndedStacks,
        Self::Files,
        Self::ProgramData,
        Self::GeneratedCode,
        Self::Shared,
        Self::JavaHeap,
        Self::JavaOther,
        Self::PythonArenas,
        Self::GoHeap,
        Self::GoRuntime,
        Self::V8Heap,
        Self::BrowserHeaps,
        Self::DotNet,
        Self::DatabaseBuffers,
        Self::AllocatorMappings,
        Self::HugeZeros,
        Self::KernelPages,
        Self::Mappings,
        Self::Unexplained,
    ];

    /// Part that counts memory of this kind.
    pub fn group(self) -> MemoryGroup {
        match self {
            Self::RunningStacks | Self::UnjoinedStacks | Self::CachedStacks | Self::EndedStacks => {
                MemoryGroup::ThreadStacks
            }
            Self::Files => MemoryGroup::Files,
            Self::Shared => MemoryGroup::Shared,
            Self::ProgramData
            | Self::GeneratedCode
            | Self::JavaHeap
            | Self::JavaOther
            | Self::PythonArenas
            | Self::GoHeap
            | Self::GoRuntime
            | Self::V8Heap
            | Self::BrowserHeaps
            | Self::DotNet
            | Self::DatabaseBuffers
            | Self::AllocatorMappings
            | Self::HugeZeros
            | Self::KernelPages
            | Self::Mappings
            | Self::Unexplained => MemoryGroup::Unexplained,
        }
    }
}

/// Resident memory of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindBytes {
    /// Purpose.
    pub kind: MemoryKind,
    /// Resident bytes.
    pub bytes: u64,
}

/// Resident memory with a name that the program chose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedBytes {
    /// Path, or name given to `memfd_create`; at most [`Parts::MAX_NAME`] bytes.
    pub name: String,
    /// Resident bytes.
    pub bytes: u64,
}

/// Memory that a process is responsible for and that is not resident in it, in bytes; and zeros in its
/// allocator's memory. All are 0 where they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Beside {
    /// Swapped out.
    pub swapped: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Pages of hugetlbfs, which the kernel does not count as resident.
    pub hugetlb: u64,
    /// Buffers of its sockets in the kernel.
    pub sockets: u64,
    /// Files in memory without a name that it has open, as far as it has not mapped them.
    pub held_files: u64,
    /// Part of `rss`: pages of zeros in huge pages of the allocator, estimated. They were never used, or
    /// cleared.
    pub allocator_zeros: u64,
    /// Memory of its cgroup that is in nothing above; `None` unless it is the only process there.
    pub cgroup: Option<CgroupRest>,
}

/// Memory that a cgroup is charged for, in no process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupRest {
    /// Pages of files that are not mapped.
    pub page_cache: u64,
    /// Objects of the kernel.
    pub slab: u64,
    /// Buffers of sockets beyond the process's own.
    pub sockets: u64,
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
    /// Maximum number of names of shared memory.
    pub const MAX_NAMED: usize = 3;
    /// Maximum size of such a name in bytes.
    pub const MAX_NAME: usize = 256;

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
