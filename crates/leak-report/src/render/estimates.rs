//! Lines of text reports about sampling: the error of estimates, and allocations that were deliberately not
//! recorded.

use crate::model::{Estimate, Sampling, Source, Spread};

use super::words::{counted, size};
use crate::model::Report;

/// Lines on how allocations were sampled, the error of the total, and the calls filtered out by size; empty
/// if all allocations were recorded.
pub(super) fn sampling_lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let chosen = match report.sampling {
        Sampling::All => None,
        Sampling::Calls(pages) if report.source == Source::Faults => {
            Some(format!("one of {pages} pages was recorded"))
        }
        Sampling::Calls(calls) => Some(format!("one of {calls} allocations was recorded")),
        Sampling::Bytes(bytes) => Some(format!("one allocation for each {} was recorded", size(bytes))),
        Sampling::Governed(bytes) => Some(format!(
            "one allocation for each {} is recorded now; the interval was different before",
            size(bytes)
        )),
        Sampling::Provider(None) => Some("the process chose the allocations that were recorded".to_owned()),
        Sampling::Provider(Some(bytes)) => Some(format!(
            "the process chose one allocation for each {} to be recorded",
            size(bytes)
        )),
    };
    if let Some(chosen) = chosen {
        let Estimate { amount, spread } = report.stacks().map(|stack| stack.outstanding).sum();
        lines.push(format!("{chosen}: amounts are estimates"));
        lines.push(format!(
            "outstanding in all: {} in {}, {}",
            size(amount.bytes),
            counted(amount.blocks, "block"),
            error(spread)
        ));
    }
    let filtered = report.events.filtered;
    if filtered.blocks > 0 {
        lines.push(format!(
            "not recorded because of their size (-z, -Z): {} for {}",
            counted(filtered.blocks, "call"),
            size(filtered.bytes)
        ));
    }
    lines
}

impl Report {
    /// Standard error of the outstanding bytes of an instance; `None` if they are exact.
    pub(super) fn tracked_error(&self, instance: u32) -> Option<f64> {
        let stacks = self.stacks.iter().filter(|stack| stack.instance == instance);
        let outstanding: Estimate = stacks.map(|stack| stack.outstanding).sum();
        (self.sampling != Sampling::All).then(|| outstanding.spread.standard_error().bytes)
    }
}

/// Formats the standard error of an estimate and the number of recorded blocks that it is based on.
pub fn error(spread: Spread) -> String {
    let error = spread.standard_error();
    format!(
        "± {} and {:.0} blocks (standard error; from {} recorded)",
        size(whole(error.bytes)),
        error.blocks,
        counted(spread.recorded, "block")
    )
}

/// Rounds a standard error, which is not negative, to the nearest integer.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and is not below zero"
)]
pub fn whole(error: f64) -> u64 {
    error.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standard error is written in whole units, with the number of blocks that it is based on.
    #[test]
    fn errors() {
        let spread = Spread {
            recorded: 4,
            bytes: 2048 * 2048,
            blocks: 9 << 32,
        };
        assert_eq!(
            error(spread),
            "± 2.0 KiB (2048 B) and 3 blocks (standard error; from 4 blocks recorded)"
        );
    }
}
