//! Memory of a process in a report.

use serde::Deserialize;

/// Parts of the resident memory of a process, in bytes.
#[derive(Clone, Debug, Deserialize)]
pub struct Memory {
    pub rss: u64,
    pub tracked: u64,
    pub before_attach_at_most: u64,
    pub slack_at_least: u64,
    pub thread_stacks: u64,
    pub files: u64,
    pub shared: u64,
    pub unexplained: u64,
    pub not_resident: u64,
    pub growth_elsewhere: Option<Elsewhere>,
    pub kinds: Vec<KindBytes>,
    pub beside: Option<Beside>,
}

/// Resident memory of one kind.
#[derive(Clone, Debug, Deserialize)]
pub struct KindBytes {
    pub kind: String,
    pub bytes: u64,
}

/// Memory that is not resident.
#[derive(Clone, Debug, Deserialize)]
pub struct Beside {
    pub page_tables: u64,
}

/// Growth since the attach of parts without allocations.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Elsewhere {
    pub thread_stacks: u64,
    pub files: u64,
    pub shared: u64,
    pub unexplained: u64,
}

impl Memory {
    /// Sum of all parts of the resident memory.
    pub fn sum(&self) -> u64 {
        self.of_allocator() + self.thread_stacks + self.files + self.shared + self.unexplained
    }

    /// Sum of the allocator's parts and of all kinds.
    pub fn sum_of_kinds(&self) -> u64 {
        self.of_allocator() + self.kinds.iter().map(|kind| kind.bytes).sum::<u64>()
    }

    fn of_allocator(&self) -> u64 {
        self.tracked + self.before_attach_at_most + self.slack_at_least
    }

    /// Resident memory of one kind.
    pub fn of_kind(&self, wanted: &str) -> u64 {
        let kind = self.kinds.iter().find(|kind| kind.kind == wanted);
        kind.map_or(0, |kind| kind.bytes)
    }
}
