//! Verdicts on outstanding blocks: whether the process can still reach them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Amount;

/// Outstanding blocks of a stack, in memcheck's words. The four add up to what is outstanding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Verdict {
    /// No chain of pointers leads to them, from nowhere.
    pub definitely_lost: Amount,
    /// Only blocks that are lost lead to them.
    pub indirectly_lost: Amount,
    /// The process can still reach them.
    pub reachable: Amount,
    /// They could not be judged.
    pub unknown: Amount,
}

/// Reason why a block could not be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unjudged {
    /// Allocated, or freed, while the verdict was made.
    Young,
    /// Its process has ended.
    Ended,
    /// The limit on time ended the verdict before enough passes agreed.
    NotSettled,
    /// The memory of its process could not be read.
    Unreadable,
}

impl Unjudged {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Young, Self::Ended, Self::NotSettled, Self::Unreadable];
}

/// Facts about the verdict of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judgement {
    /// Number of passes over the memory of the process that needed most.
    pub passes: u32,
    /// Time from the first listing of blocks to the verdict.
    pub took: Duration,
    /// Bytes that were read, in all passes.
    pub read: u64,
    /// Longest time for which a thread was stopped; `None` if none was.
    pub stopped: Option<Duration>,
    /// Blocks that could not be judged, by reason; reasons that did not occur are absent.
    pub unjudged: BTreeMap<Unjudged, Amount>,
    /// Blocks that an earlier verdict of the trace called lost, and that the process has freed since: that verdict was false.
    pub freed_later: Amount,
    /// Bytes of mapped memory that are there and could not be read: pointers in them were not seen.
    pub unreadable: u64,
}
