//! Progress of a trace, and memleak's own memory.

use std::time::Duration;

use super::Amount;
use serde::{Deserialize, Serialize};

/// Progress of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Time since the attach.
    pub elapsed: Duration,
    /// Entries of allocation functions; for the kernel, all events.
    pub calls: u64,
    /// Allocated and not freed.
    pub live: Amount,
    /// Distinct stacks that allocated.
    pub stacks: u64,
    /// Blocks that were not recorded.
    pub lost: u64,
}

/// Memory of memleak itself, in bytes; 0 where it could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnMemory {
    /// Resident memory, including mapped BPF arrays and file pages.
    pub resident_bytes: u64,
    /// Peak resident memory.
    pub peak_bytes: u64,
    /// Memory of BPF maps as the kernel reports it: all that this process has open, each once.
    pub kernel_bytes: u64,
}
