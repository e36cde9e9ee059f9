//! An object's unwind information as sorted rows with explicit gaps: what `image` packs.

use crate::addr::Svma;
use crate::rule::UnwindRule;

/// A rule and the first address it holds for; it holds up to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// First address.
    pub start: Svma,
    /// The rule.
    pub rule: UnwindRule,
}

/// Rows in ascending order of address, no two at the same one.
///
/// Invariant: the last row, if there is one, is a gap, so every address is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindTable {
    rows: Vec<Row>,
}

impl UnwindTable {
    /// Takes rows that hold the invariant; `None` when they do not.
    pub fn from_rows(rows: Vec<Row>) -> Option<Self> {
        let ascending = rows.windows(2).all(|pair| pair[0].start < pair[1].start);
        let closed = rows.last().is_none_or(|row| row.rule == UnwindRule::Gap);
        (ascending && closed).then_some(Self { rows })
    }

    /// The rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The rule for one address: a gap before the first row.
    pub fn rule_at(&self, svma: Svma) -> UnwindRule {
        let after = self.rows.partition_point(|row| row.start <= svma);
        match after.checked_sub(1) {
            Some(last) => self.rows[last].rule,
            None => UnwindRule::Gap,
        }
    }
}
