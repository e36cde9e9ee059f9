//! Totals of every stack that allocated, at one moment.

use std::sync::Arc;
use std::time::Duration;

use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, Frame, LeftOut};

use super::leak::{PythonChain, PythonStacks};
use super::{Amount, Estimate, Events, LifeSpans, Losses, Peak, RegionKind, Sampling, Source};

/// Stack, and its totals since the attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTotals {
    /// Id of its stack record; never reused.
    pub record: u32,
    /// Instance that allocated; 0 for all together, if the stack is not known.
    pub instance: u32,
    /// Epoch: within one, an address means the same code.
    pub epoch: u32,
    /// Index into the function table.
    pub function: u8,
    /// Frames, innermost first: the first is the caller of the allocator function.
    pub frames: Vec<Frame>,
    /// Frames between these that were found but not kept, in the first of its walks.
    pub left_out: Option<LeftOut>,
    /// Reason why the walk ended.
    pub end: End,
    /// Address that the walk could not get past.
    pub end_pc: Avma,
    /// Allocated since the attach.
    pub allocated: Estimate,
    /// Part of `allocated` that was freed.
    pub freed: Estimate,
    /// Outstanding at the moment of [`Snapshot::peak`].
    pub peak: Amount,
    /// Use of the mappings; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// Allocated but not recorded; not included in `allocated`.
    pub lost: Amount,
    /// Walks of it that were finished in user space.
    pub finished_walks: u64,
    /// Freed blocks by how long they lived.
    pub life_spans: LifeSpans,
    /// Python functions of its thread that are not in `frames` yet; `None` if there are none.
    pub python: Option<Arc<PythonChain>>,
}

impl StackTotals {
    /// Allocated and not freed.
    pub fn outstanding(&self) -> Estimate {
        self.allocated.less(self.freed)
    }
}

/// Walks that were repeated without the fast paths; see `bpf::FastPaths::checked`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedWalks {
    /// Repeated walks.
    pub checked: u64,
    /// Repeated walks whose first result came from the walk memo.
    pub recalled: u64,
    /// Repeated walks that found a different stack.
    pub different: u64,
}

/// Everything recorded up to one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Time since the attach.
    pub elapsed: Duration,
    /// Source of the knowledge of allocations.
    pub source: Source,
    /// Selection of the recorded allocations; unless all were recorded, amounts are estimates.
    pub sampling: Sampling,
    /// Stacks that allocated.
    pub stacks: Vec<StackTotals>,
    /// The moment of the highest total; `None` where that is not followed.
    pub peak: Option<Peak>,
    /// Counts of calls.
    pub events: Events,
    /// Events that were not recorded.
    pub losses: Losses,
    /// Repeated walks; zero outside tests.
    pub walks: CheckedWalks,
    /// Walks that user space should have finished but did not: there was no room for them, or the mappings of
    /// that moment were not known.
    pub unfinished_walks: u64,
    /// Allocated blocks of stacks with Python functions, by how many of the functions were placed.
    pub python: PythonStacks,
}
