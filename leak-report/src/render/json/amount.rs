//! Amounts in JSON, and how far estimated ones can be off.

use serde::Serialize;

use crate::model::Report;
use crate::model::{Amount, Estimate, Sampling, StackRef, StandardError};

/// An amount; of an estimate also what it rests on.
#[derive(Serialize)]
pub(super) struct AmountJson {
    bytes: u64,
    blocks: u64,
    #[serde(flatten)]
    estimate: Option<EstimateJson>,
}

/// Only where amounts are estimates.
#[derive(Serialize)]
struct EstimateJson {
    standard_error: ErrorJson,
    /// Blocks that were recorded and stand for all.
    recorded_blocks: u64,
}

#[derive(Serialize)]
pub(super) struct ErrorJson {
    pub(super) bytes: f64,
    pub(super) blocks: f64,
}

impl From<Amount> for AmountJson {
    fn from(Amount { bytes, blocks }: Amount) -> Self {
        Self {
            bytes,
            blocks,
            estimate: None,
        }
    }
}

impl AmountJson {
    pub(super) fn of(report: &Report, Estimate { amount, spread }: Estimate) -> Self {
        let StandardError { bytes, blocks } = spread.standard_error();
        let estimate = EstimateJson {
            standard_error: ErrorJson { bytes, blocks },
            recorded_blocks: spread.recorded,
        };
        Self {
            estimate: (report.sampling != Sampling::All).then_some(estimate),
            ..amount.into()
        }
    }

    /// Over all stacks.
    pub(super) fn total(report: &Report, of: impl Fn(StackRef<'_>) -> Estimate) -> Self {
        Self::of(report, report.stacks().map(of).sum())
    }
}

/// Which allocations were recorded; null when all were.
#[derive(Serialize)]
pub(super) struct SamplingJson {
    method: &'static str,
    interval: u64,
}

impl SamplingJson {
    pub(super) fn of(sampling: Sampling) -> Option<Self> {
        let (method, interval) = match sampling {
            Sampling::All => return None,
            Sampling::Calls(calls) => ("calls", calls),
            Sampling::Bytes(bytes) | Sampling::Governed(bytes) => ("bytes", bytes),
        };
        Some(Self { method, interval })
    }
}
