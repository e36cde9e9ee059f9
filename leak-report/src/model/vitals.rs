//! How a trace goes, and what memleak itself takes.

use std::time::Duration;

use super::Amount;
use serde::{Deserialize, Serialize};

/// How a trace goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Time since tracing began.
    pub elapsed: Duration,
    /// Entries of functions that allocate; of the kernel, all events.
    pub calls: u64,
    /// Allocated and not freed.
    pub live: Amount,
    /// Different stacks that allocated.
    pub stacks: u64,
    /// Blocks that were not recorded.
    pub lost: u64,
}

/// Own memory, in bytes; 0 for what could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnMemory {
    /// Resident now, arrays of the kernel's that are mapped and pages of files among it.
    pub resident_bytes: u64,
    /// The most that was resident.
    pub peak_bytes: u64,
    /// What the kernel says that maps take: all that this process has open, each once.
    pub kernel_bytes: u64,
}
