//! Events of mapping calls, as the kernel side reports them.

use leak_report::model::RegionCall;

/// Number of arguments of a call that are recorded.
pub const REGION_ARGUMENTS: usize = 5;

/// The begin of a mapping call that may unmap, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionEvent {
    /// Instance that owns the mappings.
    pub instance: u32,
    /// ID of the calling thread.
    pub thread: u32,
    pub call: RegionCall,
    pub arguments: [u64; REGION_ARGUMENTS],
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    pub moment: CallMoment,
}

/// Moment of an event within its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMoment {
    /// The call is about to begin.
    Begins {
        /// For `brk`: the break before the call.
        program_break: u64,
    },
    Ended {
        /// Return value; errors are negative numbers above -4096.
        result: u64,
        /// Index of the call's stack record, if it made a mapping.
        stack: u32,
    },
}
