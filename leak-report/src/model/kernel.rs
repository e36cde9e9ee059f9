//! What is known of the kernel, where its own allocations were traced.

use super::{Amount, Name};
use serde::{Deserialize, Serialize};

/// The kernel that was traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Its version.
    pub release: String,
    /// What there is by allocator; of those that allocated nothing, nothing.
    pub kinds: Vec<KindTotals>,
}

/// The totals of one of the kernel's allocators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTotals {
    /// Its name, as stacks have it.
    pub allocator: Name,
    /// Allocated and not freed.
    pub outstanding: Amount,
    /// Everything allocated.
    pub allocated: Amount,
    /// Whether its blocks hold those of another, which are counted by themselves.
    pub holds_others: bool,
}

impl KernelFacts {
    /// Whether blocks of this allocator hold those of another.
    pub fn holds_others(&self, allocator: &str) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|kind| kind.holds_others && kind.allocator == allocator)
    }
}
