//! What reports for people say of estimates and of what was not recorded on purpose.

use crate::model::{Estimate, Sampling, Spread};

use super::health::{counted, size};
use crate::model::Report;

/// What the sampling means for the report's amounts; empty when all allocations were recorded.
pub(super) fn sampling_lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let chosen = match report.sampling {
        Sampling::All => None,
        Sampling::Calls(calls) => Some(format!("one of {calls} allocations was recorded")),
        Sampling::Bytes(bytes) => Some(format!("one allocation for each {} was recorded", size(bytes))),
        Sampling::Governed(bytes) => Some(format!(
            "one allocation for each {} is recorded now, more or fewer before",
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
            "not recorded for their size: {} for {}",
            counted(filtered.blocks, "call"),
            size(filtered.bytes)
        ));
    }
    lines
}

impl Report {
    /// How far what an instance has live can be off, in bytes; `None` where it is exact.
    pub(super) fn tracked_error(&self, instance: u32) -> Option<f64> {
        let stacks = self.stacks.iter().filter(|stack| stack.instance == instance);
        let outstanding: Estimate = stacks.map(|stack| stack.outstanding).sum();
        (self.sampling != Sampling::All).then(|| outstanding.spread.standard_error().bytes)
    }
}

/// How far an estimate can be off, and what it rests on.
pub fn error(spread: Spread) -> String {
    let error = spread.standard_error();
    format!(
        "± {} and {:.0} blocks (standard error; from {} recorded)",
        size(whole(error.bytes)),
        error.blocks,
        counted(spread.recorded, "block")
    )
}

/// The nearest whole number; an error is not below zero.
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

    /// An error is said in whole units, with what it rests on.
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
