//! Single blocks of a stack (`-a`), as text and JSON write them.

use std::time::Duration;

use serde::Serialize;

use super::words::counted;
use crate::model::Report;
use crate::model::printable::Printable;
use crate::model::{BlockList, ListedBlock, Sampling, StackRef};

/// Maximum number of blocks over all stacks: 200 MB while a report is made, and more lines than anyone reads.
pub(super) const IN_ALL: usize = 1 << 22;

/// The blocks of a stack, one line each, and the number of those not listed.
pub(super) fn lines(stack: StackRef<'_>, report: &Report) -> Vec<String> {
    let Some(BlockList { listed, left_out }) = &stack.blocks else {
        return Vec::new();
    };
    let mut lines: Vec<_> = listed.iter().map(|block| line(block, report)).collect();
    match (listed.is_empty(), *left_out) {
        (_, 0) => {}
        (true, blocks) => lines.push(format!("{} not listed", counted(blocks, "block"))),
        (false, blocks) => lines.push(format!("and {}", counted(blocks, "more block"))),
    }
    lines
}

fn line(block: &ListedBlock, report: &Report) -> String {
    let age = age(block.age);
    let text = format!("addr = {:#x} size = {}, {age} old", block.address, block.size);
    let text = match report.sampling {
        Sampling::All => text,
        Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => {
            format!("{text}, stands for {:.1}", block.weight.blocks())
        }
    };
    match block.class {
        Some(class) => format!("{text}, class {}", Printable(report.dictionary.text(class))),
        None => text,
    }
}

/// Formats a time with one decimal in the largest unit in which it is at least 1; in ms below one second.
fn age(age: Duration) -> String {
    const UNITS: [(f64, &str); 4] = [(86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")];
    let seconds = age.as_secs_f64();
    let unit = UNITS.iter().find(|(unit, _)| seconds >= *unit);
    match unit {
        Some((unit, name)) => format!("{:.1} {name}", seconds / unit),
        None => format!("{} ms", age.as_millis()),
    }
}

/// The listed blocks of a stack in JSON.
#[derive(Serialize)]
pub(super) struct BlocksJson<'a> {
    listed: Vec<BlockJson<'a>>,
    left_out: u64,
}

#[derive(Serialize)]
struct BlockJson<'a> {
    address: String,
    bytes: u64,
    age_ns: u64,
    /// Number of blocks that this one stands for; only if blocks are sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
    /// C++ class of the block, if it was looked for and found.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
}

impl<'a> BlocksJson<'a> {
    pub(super) fn of(list: &BlockList, report: &'a Report) -> Self {
        let is_sampled = report.sampling != Sampling::All;
        let listed = list.listed.iter().map(|block| BlockJson {
            address: format!("{:#x}", block.address),
            bytes: block.size,
            age_ns: u64::try_from(block.age.as_nanos()).unwrap_or(u64::MAX),
            weight: is_sampled.then(|| block.weight.blocks()),
            class: block.class.map(|class| report.dictionary.text(class)),
        });
        Self {
            listed: listed.collect(),
            left_out: list.left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ages are written in the largest unit in which they are at least 1.
    #[test]
    fn ages() {
        for (milliseconds, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1.0 s"),
            (12_340, "12.3 s"),
            (90_000, "1.5 min"),
            (5_400_000, "1.5 h"),
            (129_600_000, "1.5 d"),
        ] {
            assert_eq!(age(Duration::from_millis(milliseconds)), expected);
        }
    }
}
