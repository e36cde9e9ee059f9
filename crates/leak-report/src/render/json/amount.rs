//! Amounts in JSON, with the standard error of estimates.

use serde::Serialize;

use crate::model::Report;
use crate::model::{Amount, Estimate, Sampling, StackRef, StandardError};

/// An amount, with its standard error and basis if it is an estimate.
#[derive(Serialize)]
pub(super) struct AmountJson {
    bytes: u64,
    blocks: u64,
    #[serde(flatten)]
    estimate: Option<EstimateJson>,
}

/// Accuracy of an estimate; omitted for exact amounts.
#[derive(Serialize)]
struct EstimateJson {
    standard_error: ErrorJson,
    /// Number of recorded blocks that stand for all.
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

    /// Sum over all stacks.
    pub(super) fn total(report: &Report, of: impl Fn(StackRef<'_>) -> Estimate) -> Self {
        Self::of(report, report.stacks().map(of).sum())
    }
}

/// Sampling of allocations; null if all were recorded.
#[derive(Serialize)]
pub(super) struct SamplingJson {
    method: &'static str,
    /// Null if the process samples by itself and does not announce its interval.
    interval: Option<u64>,
}

impl SamplingJson {
    pub(super) fn of(sampling: Sampling) -> Option<Self> {
        let (method, interval) = match sampling {
            Sampling::All => return None,
            Sampling::Calls(calls) => ("calls", Some(calls)),
            Sampling::Bytes(bytes) | Sampling::Governed(bytes) => ("bytes", Some(bytes)),
            Sampling::Provider(bytes) => ("provider", bytes),
        };
        Some(Self { method, interval })
    }
}
