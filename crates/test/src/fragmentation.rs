//! Uses of allocators' memory in reports.

use serde::Deserialize;

/// Uses of the memory of a process's allocators, in bytes; all of them `None` if they are not known.
#[derive(Debug, Deserialize)]
pub struct Fragmentation {
    pub held: Option<u64>,
    pub pinned: Option<u64>,
    pub pinned_by_own: Option<u64>,
    pub pinned_by_others: Option<u64>,
    pub trimmable: Option<u64>,
    #[serde(default)]
    pub allocators: Vec<Allocator>,
    pub unknown_because: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Allocator {
    pub name: String,
    pub pinned: u64,
}
