//! Facts about the kernel, present if its own allocations were traced.

use super::{Amount, Name};
use serde::{Deserialize, Serialize};

/// Version and totals of the traced kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Kernel release (`uname -r`).
    pub release: String,
    /// Totals by allocator, without allocators that allocated nothing.
    pub kinds: Vec<KindTotals>,
}

/// Totals of one kernel allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTotals {
    /// Name, equal to the allocator name of its stacks.
    pub allocator: Name,
    /// Allocated and not freed.
    pub outstanding: Amount,
    /// Allocated since the attach.
    pub allocated: Amount,
    /// True if its blocks contain blocks of another allocator, which are counted separately.
    pub holds_others: bool,
}

impl KernelFacts {
    /// Returns whether blocks of `allocator` contain blocks of another.
    pub fn holds_others(&self, allocator: &str) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|kind| kind.holds_others && kind.allocator == allocator)
    }
}
