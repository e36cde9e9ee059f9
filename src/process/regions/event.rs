//! Mapping calls as they are observed.

use leak_report::model::RegionCall;

/// Arguments of a call that are recorded.
pub const REGION_ARGUMENTS: usize = 5;

/// A mapping call that is about to take mappings away, or that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionEvent {
    /// The instance that owns the mappings.
    pub instance: u32,
    /// The thread that calls.
    pub thread: u32,
    /// The call.
    pub call: RegionCall,
    /// Its arguments, the first five.
    pub arguments: [u64; REGION_ARGUMENTS],
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// Whether it is about to begin or has ended.
    pub moment: CallMoment,
}

/// The moment of an event, within its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMoment {
    /// It is about to begin.
    Begins {
        /// For `brk`: the break now.
        program_break: u64,
    },
    /// It has ended.
    Ended {
        /// What it returned; errors are negative numbers above -4096.
        result: u64,
        /// The index of its stack's record, if it made a mapping.
        stack: u32,
    },
}
