//! Selection of the allocations that are recorded.

use serde::{Deserialize, Serialize};
/// Selection of the allocations that are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// Every allocation.
    #[default]
    All,
    /// One random call of each group of this many; at most [`Sampling::MAX_CALLS`].
    Calls(u64),
    /// Allocations that contain a chosen byte; the value is the sampling interval, the mean number of bytes
    /// between chosen ones; at most [`Sampling::MAX_BYTES`].
    Bytes(u64),
    /// Like [`Sampling::Bytes`], with a sampling interval that changes during the trace (`bpf::Distance`):
    /// the initial one before the trace starts, then the current one. 1 records every allocation.
    Governed(u64),
    /// Allocations that the process itself chose and announced, with what each stands for. The value is the
    /// mean number of bytes between chosen ones, if that is known.
    Provider(Option<u64>),
}

/// Source of the knowledge of allocations and frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Probes in the functions of allocators.
    #[default]
    Uprobe,
    /// The process itself, by USDT probes.
    Usdt,
    /// Tracepoints of system calls.
    Syscall,
    /// Tracepoints and functions of the kernel's allocators.
    Kernel,
    /// Page faults.
    Faults,
}

impl Source {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uprobe => "uprobe",
            Self::Usdt => "usdt",
            Self::Syscall => "syscall",
            Self::Kernel => "kernel",
            Self::Faults => "faults",
        }
    }
}

impl Sampling {
    /// Maximum number of calls of which one is recorded.
    pub const MAX_CALLS: u64 = 1 << 24;
    /// Maximum sampling interval in bytes.
    pub const MAX_BYTES: u64 = 1 << 40;
}
