//! Which allocations are recorded.

use serde::{Deserialize, Serialize};
/// Which allocations are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampling {
    /// All.
    #[default]
    All,
    /// One of each so many calls, at a random place among them; at most [`Sampling::MAX_CALLS`].
    Calls(u64),
    /// Those with a byte that was chosen, one of so many on average; at most [`Sampling::MAX_BYTES`].
    Bytes(u64),
    /// As [`Sampling::Bytes`], by a distance that changes while the trace goes on (`bpf::Distance`): of a
    /// trace to be begun, the first; of one that goes on, that of now. 1 is all.
    Governed(u64),
}

impl Sampling {
    /// The most calls of which one is recorded.
    pub const MAX_CALLS: u64 = 1 << 24;
    /// The most bytes of which one is chosen.
    pub const MAX_BYTES: u64 = 1 << 40;
}
