//! A diagnosis: whether a process's memory grows, and why. Pure.

use std::sync::Arc;
use std::time::Duration;

use super::amount::Amount;

/// Kind of a cause, which decides the name in JSON and how it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CauseKind {
    /// Blocks that the process can no longer reach.
    Lost,
    /// Blocks that something holds, of which there are ever more.
    Kept,
    /// Free memory between blocks, which it cannot be given back without.
    Pinned,
    /// Free memory that the allocator keeps although no block is in it.
    FreeInAllocator,
    /// Stacks of threads that run, or that have ended and were not joined.
    ThreadStacks,
    /// Mappings that the program makes itself.
    Mappings,
    /// Memory that other processes can map: memfd, `/dev/shm`, System V, anonymous shared mappings.
    SharedMemory,
    /// Memory of the kernel for the process: sockets, pipes, descriptors, page tables.
    Kernel,
    /// Huge pages of which little was ever touched.
    HugePages,
    /// Pages of mapped files.
    Files,
    /// Stack of the first thread.
    Stack,
    /// Heap of a runtime that collects garbage, or has its own arenas: Java, Go, V8, Python.
    ManagedHeap,
}

impl CauseKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Lost,
        Self::Kept,
        Self::Pinned,
        Self::FreeInAllocator,
        Self::ThreadStacks,
        Self::Mappings,
        Self::SharedMemory,
        Self::Kernel,
        Self::HugePages,
        Self::Files,
        Self::Stack,
        Self::ManagedHeap,
    ];

    /// Name in JSON, and in conditions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Kept => "kept",
            Self::Pinned => "pinned",
            Self::FreeInAllocator => "free_in_allocator",
            Self::ThreadStacks => "thread_stacks",
            Self::Mappings => "mappings",
            Self::SharedMemory => "shared_memory",
            Self::Kernel => "kernel",
            Self::HugePages => "huge_pages",
            Self::Files => "files",
            Self::Stack => "stack",
            Self::ManagedHeap => "managed_heap",
        }
    }

    /// Words for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Lost => "lost blocks",
            Self::Kept => "kept blocks",
            Self::Pinned => "free memory between blocks",
            Self::FreeInAllocator => "free memory in the allocator",
            Self::ThreadStacks => "thread stacks",
            Self::Mappings => "mappings",
            Self::SharedMemory => "shared memory",
            Self::Kernel => "memory in the kernel",
            Self::HugePages => "huge pages",
            Self::Files => "mapped files",
            Self::Stack => "the first thread's stack",
            Self::ManagedHeap => "a managed heap",
        }
    }
}

/// How sure a cause is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// Something else can explain what was seen.
    Possible,
    /// All that was seen fits, and nothing contradicts it.
    Likely,
    /// Seen directly: counted, or proved by the allocator's own structures.
    Certain,
}

impl Certainty {
    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

/// Place in the program that is responsible for a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Function, or an address in a module where no name is known.
    pub function: Arc<str>,
    /// Source file.
    pub file: Option<Arc<str>>,
    /// Line in that file.
    pub line: Option<u32>,
    /// Module of the function.
    pub module: Option<Arc<str>>,
}

impl Place {
    /// Source file without its directory, and line; `None` if it is not known.
    pub fn source(&self) -> Option<(&str, u32)> {
        let file = self.file.as_deref()?;
        Some((file.rsplit('/').next().unwrap_or(file), self.line?))
    }
}

/// A reason why memory grows, or is held without use.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Kind of the memory.
    pub kind: CauseKind,
    /// Part of the growth that it explains, from 0 to 1.
    pub share: f64,
    /// Growth in bytes per second.
    pub bytes_per_second: f64,
    /// Amount by now: bytes, and blocks where it has some.
    pub amount: Amount,
    /// How sure it is that this is a cause.
    pub certainty: Certainty,
    /// Place in the program.
    pub site: Option<Place>,
    /// Holder of the blocks.
    pub holder: Option<String>,
    /// One sentence: what it means.
    pub meaning: String,
    /// One sentence: what to do next.
    pub next: String,
}

/// Answer to whether memory grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Growth {
    /// It grows.
    Grows,
    /// It does not grow by more than these bytes per second.
    Steady {
        /// Largest growth that may have been missed.
        at_most: f64,
    },
    /// That cannot be told before so much more time.
    NotSure {
        /// Time that is needed at least.
        more: Duration,
    },
}

impl Growth {
    /// Value of `grows` in JSON.
    pub const fn grows(self) -> Option<bool> {
        match self {
            Self::Grows => Some(true),
            Self::Steady { .. } => Some(false),
            Self::NotSure { .. } => None,
        }
    }
}
