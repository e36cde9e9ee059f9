//! Counts of a trace, and what it has lost.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Amount;
use serde::{Deserialize, Serialize};

/// Counts of calls since tracing began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Blocks allocated, those that were lost included.
    pub allocations: u64,
    /// Blocks freed that were known.
    pub frees: u64,
    /// Blocks freed that were not known: allocated before tracing began, or lost.
    pub unknown_frees: u64,
    /// Those of them that the allocator's own module called for: the C library freed what is its own, or once more what
    /// it kept for a thread that ended.
    pub own_unknown_frees: u64,
    /// Calls that the allocator refused.
    pub failed: u64,
    /// Blocks whose free was not seen before their address was allocated again.
    pub missed_frees: u64,
    /// Allocator calls that never returned.
    pub abandoned_calls: u64,
    /// Probe hits of allocation functions, nested calls included.
    pub probe_hits: u64,
    /// Calls that asked for sizes that are not recorded, and what they asked for.
    pub filtered: Amount,
}

/// What was not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Blocks that are in no stack's totals.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frees that were not seen: what they freed is outstanding until its address is allocated again.
    pub frees: u64,
    /// Processes that were not traced though they should have been.
    pub processes: u64,
    /// Calls that were not told one by one, where that was asked for: they came faster than they could be written.
    pub calls: u64,
    /// Times that user space was not told what it should act on: until the next report, mappings may have been older
    /// than they had to be.
    pub events: u64,
    /// Blocks by cause; causes that did not occur are left out.
    pub causes: BTreeMap<Cow<'static, str>, u64>,
}
