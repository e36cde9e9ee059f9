//! One reading of all totals and counters: plain data, no BPF types.

use std::collections::BTreeMap;
use std::time::Duration;

use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, Frame};

/// A number of blocks and the bytes they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// What one stack has allocated and freed since the attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackTotals {
    /// Slot of the process.
    pub process: u32,
    /// Which of the process's successive mapping lists the addresses belong to.
    pub epoch: u32,
    /// Index into `allocator::FUNCTIONS`.
    pub function: u8,
    /// Frames, innermost first: the caller of the allocator function is the first.
    pub frames: Vec<Frame>,
    /// Why the walk ended.
    pub end: End,
    /// The address that the walk could not get past.
    pub end_pc: Avma,
    /// Everything allocated here.
    pub allocated: Amount,
    /// Those blocks of it that were freed.
    pub freed: Amount,
}

/// Calls seen since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Successful allocations.
    pub allocations: u64,
    /// Frees of blocks whose allocation was seen.
    pub frees: u64,
    /// Frees of other blocks.
    pub unknown_frees: u64,
    /// Allocator calls that failed.
    pub failed: u64,
}

/// Allocations that were seen but could not be accounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Blocks.
    pub blocks: u64,
    /// Bytes.
    pub bytes: u64,
    /// Blocks by cause.
    pub causes: BTreeMap<&'static str, u64>,
}

/// One reading of all totals and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Time since the attach.
    pub elapsed: Duration,
    /// Totals of each stack that allocated.
    pub stacks: Vec<StackTotals>,
    /// Calls seen.
    pub events: Events,
    /// What could not be accounted.
    pub losses: Losses,
}
