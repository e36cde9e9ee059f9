//! Amounts that the user's suppressions leave out of reports for people, by rule.

use std::collections::BTreeMap;

use super::{counted, size};
use crate::model::Amount;
use crate::model::Report;
use crate::model::printable::Printable;

/// Maximum number of lines for rules.
const MAX_LINES: usize = 10;

/// A line for each rule that suppresses outstanding blocks, ordered by place.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let mut rules: BTreeMap<(&str, &str), (Amount, u64)> = BTreeMap::new();
    for stack in report.stacks() {
        let Some(suppression) = &stack.get().suppressed_by else {
            continue;
        };
        let shown = stack.shown();
        if shown.blocks > 0 {
            let rule = (suppression.place.as_str(), suppression.rule.as_str());
            let (amount, stacks) = rules.entry(rule).or_default();
            *amount = *amount + shown;
            *stacks += 1;
        }
    }
    let more = rules.len().saturating_sub(MAX_LINES);
    let mut lines: Vec<_> = rules
        .into_iter()
        .take(MAX_LINES)
        .map(|((place, rule), (amount, stacks))| {
            format!(
                "{} in {} from {} by {} ({})",
                size(amount.bytes),
                counted(amount.blocks, "block"),
                counted(stacks, "stack"),
                Printable(rule),
                Printable(place)
            )
        })
        .collect();
    if more > 0 {
        lines.push(format!("… and by {}", counted(more as u64, "more rule")));
    }
    lines
}
