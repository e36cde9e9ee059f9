//! `memleak verdict`: finds the lost blocks of a process that is not traced.
//!
//! Blocks are listed from the allocator's data structures. The stacks that allocated them are unknown, so
//! they are summed by size and class.

mod json;
mod text;

use std::collections::BTreeMap;
use std::io::Write;

use super::{Format, targets};
use crate::process::select::Selectors;
use crate::session::{InUse, LostBlock, VerdictSettings, judge_in_use};
use crate::sinks::gate::{Condition, check_blocks};
use leak_report::model::Amount;

/// Options of `memleak verdict`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Properties of the process.
    pub process: Selectors,
    pub settings: VerdictSettings,
    /// Conditions that must not be exceeded: [`crate::sinks::gate::Measure::is_of_blocks`].
    pub conditions: Vec<Condition>,
    /// True to list the address of each lost block.
    pub list: bool,
    pub format: Format,
}

/// Lost blocks that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// True if no other lost block leads to them.
    is_definite: bool,
    /// Size of each block in bytes.
    size: u64,
    /// C++ class of the blocks; `None` if unknown.
    class: Option<String>,
    amount: Amount,
    /// Ascending.
    addresses: Vec<u64>,
}

/// Makes and prints a verdict. Returns the exit status.
///
/// # Errors
///
/// Fails if no verdict is possible, or it cannot be written.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<u8> {
    let found = judge_in_use(targets::find_one(&options.process)?, options.settings)?;
    let groups = groups(&found);
    match options.format {
        Format::Text => text::render(&found, &groups, options.list, out)?,
        Format::Json => json::render(&found, &groups, options.list, out)?,
    }
    out.flush()?;
    let status = check_blocks(&options.conditions, &found.verdict, &found.facts);
    Ok(status.unwrap_or(0))
}

/// Sums the lost blocks that are alike; definitely lost ones first, then by bytes, descending.
fn groups(found: &InUse) -> Vec<Group> {
    let mut groups: BTreeMap<(bool, u64, Option<&str>), Group> = BTreeMap::new();
    for LostBlock {
        block,
        is_definite,
        class,
    } in &found.lost
    {
        let key = (*is_definite, block.size, class.as_deref());
        let group = groups.entry(key).or_insert_with(|| Group {
            is_definite: *is_definite,
            size: block.size,
            class: class.clone(),
            amount: Amount::default(),
            addresses: Vec::new(),
        });
        group.amount = group.amount
            + Amount {
                bytes: block.size,
                blocks: 1,
            };
        group.addresses.push(block.address.get());
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.is_definite, group.amount.bytes)));
    groups
}
