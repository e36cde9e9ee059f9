//! The moment of the highest total in JSON.

use serde::Serialize;

use crate::model::Peak;

/// Time of the highest total, and a bound of the true peak.
#[derive(Serialize)]
pub(super) struct PeakJson {
    /// Time since the attach.
    elapsed_ns: u64,
    /// Sum over all stacks.
    bytes: u64,
    blocks: u64,
    /// Bytes that the total never exceeded, also between two looks.
    never_above_bytes: u64,
    looks: u64,
}

impl From<Peak> for PeakJson {
    fn from(peak: Peak) -> Self {
        Self {
            elapsed_ns: u64::try_from(peak.elapsed.as_nanos()).unwrap_or(u64::MAX),
            bytes: peak.total.bytes,
            blocks: peak.total.blocks,
            never_above_bytes: peak.never_above,
            looks: peak.looks,
        }
    }
}
