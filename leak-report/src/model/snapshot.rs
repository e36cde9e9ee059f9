//! Every stack that allocated, with its totals, at one moment.

use std::time::Duration;

use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, Frame};

use super::{Amount, Estimate, Events, Losses, RegionKind, Sampling};

/// One stack and what was allocated from it since tracing began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTotals {
    /// The number of its record, which is never another stack's.
    pub record: u32,
    /// The instance that allocated; 0 for all together, where the stack is not known.
    pub instance: u32,
    /// Within one epoch, an address means the same code.
    pub epoch: u32,
    /// Index into the function table.
    pub function: u8,
    /// Frames, the caller of the allocator function first.
    pub frames: Vec<Frame>,
    /// Why the walk ended.
    pub end: End,
    /// The address that the walk could not get past.
    pub end_pc: Avma,
    /// Everything allocated.
    pub allocated: Estimate,
    /// What of it was freed.
    pub freed: Estimate,
    /// What mappings of this stack are for; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// What was allocated besides and could not be recorded.
    pub lost: Amount,
}

impl StackTotals {
    /// What was allocated and not freed.
    pub fn outstanding(&self) -> Estimate {
        self.allocated.less(self.freed)
    }
}

/// Walks that were done again without what only makes them faster; see `bpf::FastPaths::checked`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedWalks {
    /// All of them.
    pub checked: u64,
    /// Those that had not been done the first time, but remembered.
    pub recalled: u64,
    /// Those that found another stack the second time.
    pub different: u64,
}

/// Everything recorded up to one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Time since tracing began.
    pub elapsed: Duration,
    /// Which allocations were recorded; if not all, then amounts are estimates.
    pub sampling: Sampling,
    /// Stacks that allocated.
    pub stacks: Vec<StackTotals>,
    /// Counts of calls.
    pub events: Events,
    /// What was not recorded.
    pub losses: Losses,
    /// Walks that were checked; none but in tests.
    pub walks: CheckedWalks,
}
