//! A diagnosis: whether a process's memory grows, and why. Pure.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::amount::Amount;

/// Kind of a cause, which decides the name in JSON and how it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

    /// Names of all, in the same order.
    pub const NAMES: [&'static str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].name();
            at += 1;
        }
        names
    };

    /// Name in JSON, in recordings, and in conditions.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// One sentence: what it means; empty in an anonymized report.
    pub meaning: String,
    /// One sentence: what to do next; empty in an anonymized report.
    pub next: String,
}

impl Cause {
    /// True if its memory grows; false if it is only held without use.
    pub fn grows(&self) -> bool {
        self.bytes_per_second > 0.0
    }
}

/// Answer to whether memory grows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// A process, and memory that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Process id.
    pub pid: u32,
    /// Command name of the process (`comm`).
    pub comm: String,
    /// Bytes, resident and swapped out.
    pub bytes: u64,
}

/// Processes that one was chosen from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Among {
    /// Number of processes.
    pub processes: u64,
    /// Time for which they were compared.
    pub took: Duration,
    /// If none grows: those that hold most anonymous memory, largest first.
    pub largest: Vec<Holding>,
}

/// Answer to whether the memory of a process grows, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Process that it is about, with all its memory and what the kernel holds for it; `None` if none of
    /// several grows.
    pub process: Option<Holding>,
    /// Processes that this one was chosen from; `None` if it was the only one.
    #[serde(default)]
    pub among: Option<Among>,
    /// Time that it took.
    pub took: Duration,
    /// Answer to whether the memory grows.
    pub growth: Growth,
    /// Growth of all memory that certainly grows, in bytes per second.
    pub bytes_per_second: f64,
    /// Causes of the growth, the largest first, then memory that is held without use.
    pub causes: Vec<Cause>,
    /// Parts of the work, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// Part of the work for a diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Subject that was looked at: `readings`, `blocks`, for example.
    pub what: String,
    /// Time that it took.
    pub took: Duration,
    /// CPU time that it took from the process, as a share of one CPU; `None` if it took none.
    pub cost: Option<f64>,
    /// True if it was given up because of its cost.
    pub is_given_up: bool,
}

impl Step {
    /// A step that cost the process nothing.
    pub fn of(what: &str, took: Duration) -> Self {
        Self {
            what: what.to_owned(),
            took,
            cost: None,
            is_given_up: false,
        }
    }
}
