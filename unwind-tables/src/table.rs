//! An object's unwind information as sorted rows with explicit gaps, which `encode` lays out as an image.

use std::ops::Range;

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::packed::PackedRule;
use crate::places::Places;
use crate::program::Programs;
use crate::rule::UnwindRule;

/// Content of a row: a rule, or saves.
pub trait RowRule: Copy + Eq {
    /// Content of a row of code without CFI.
    const GAP: Self;

    /// Packs the content in 31 bits; `None` if it does not fit. Content of a table always fits.
    fn pack(self) -> Option<PackedRule>;
}

impl RowRule for PackedRule {
    const GAP: Self = Self::GAP;

    fn pack(self) -> Option<PackedRule> {
        Some(self)
    }
}

/// Packs rules as those of x86-64.
impl RowRule for UnwindRule {
    const GAP: Self = Self::Gap;

    fn pack(self) -> Option<PackedRule> {
        PackedRule::pack(self, Architecture::default())
    }
}

/// A rule and the first address that it applies to, up to the next row's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<R = UnwindRule> {
    /// First address.
    pub start: Svma,
    /// The rule.
    pub rule: R,
}

/// Rows in strictly ascending order of address.
///
/// Invariant: the last row, if any, is a gap, so every address has a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows<R = UnwindRule>(Vec<Row<R>>);

impl<R: RowRule> Rows<R> {
    /// Converts rows; `None` if they violate the invariant.
    pub fn new(rows: Vec<Row<R>>) -> Option<Self> {
        let ascending = rows.windows(2).all(|pair| pair[0].start < pair[1].start);
        let closed = rows.last().is_none_or(|row| row.rule == R::GAP);
        (ascending && closed).then_some(Self(rows))
    }

    /// Returns the rows.
    pub fn as_slice(&self) -> &[Row<R>] {
        &self.0
    }

    /// The rows at their places in an image.
    pub(crate) fn placed(self, places: &Places) -> Self {
        if places.are_of_file() {
            return self;
        }
        Self(places.place(&self.0))
    }

    /// Returns the content for one address: a gap before the first row.
    pub fn rule_at(&self, svma: Svma) -> R {
        let after = self.0.partition_point(|row| row.start <= svma);
        match after.checked_sub(1) {
            Some(last) => self.0[last].rule,
            None => R::GAP,
        }
    }
}

/// The rules of an object, and the programs that they refer to. Stored packed: unpacked rules would take two
/// and a half times the memory, and a table is read only once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindTable {
    rows: Rows<PackedRule>,
    programs: Programs,
}

impl UnwindTable {
    /// Converts rows that ascend and end in a gap; `None` if they do not, or if a rule needs a program.
    pub fn from_rows(rows: Vec<Row>) -> Option<Self> {
        Self::with_programs(rows, Programs::default())
    }

    /// Converts rows that ascend and end in a gap, and the programs that they refer to; `None` if they do
    /// not.
    pub fn with_programs(rows: Vec<Row>, programs: Programs) -> Option<Self> {
        let architecture = programs.architecture();
        let packed = rows.into_iter().map(|Row { start, rule }| {
            let rule = PackedRule::pack(rule, architecture)?;
            Some(Row { start, rule })
        });
        Self::from_packed(packed.collect::<Option<_>>()?, programs)
    }

    /// Takes packed rows that ascend and end in a gap, and the programs that they refer to; `None` if they do
    /// not.
    pub(crate) fn from_packed(rows: Vec<Row<PackedRule>>, programs: Programs) -> Option<Self> {
        let rows = Rows::new(rows)?;
        Some(Self { rows, programs })
    }

    /// Returns the rows, unpacked.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.rows.as_slice().iter();
        let written_out = rows.map(|&Row { start, rule }| Row {
            start,
            rule: self.unpack(rule),
        });
        written_out.collect()
    }

    /// Returns the programs that rules refer to.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the rule for one address: a gap before the first row.
    pub fn rule_at(&self, svma: Svma) -> UnwindRule {
        self.unpack(self.rows.rule_at(svma))
    }

    /// The table with its rows at their places in an image.
    pub(crate) fn placed(self, places: &Places) -> Self {
        Self {
            rows: self.rows.placed(places),
            ..self
        }
    }

    /// Unpacks a rule of this table, which is always valid.
    pub(crate) fn unpack(&self, rule: PackedRule) -> UnwindRule {
        let written_out = rule.unpack(self.programs.architecture());
        written_out.unwrap_or(UnwindRule::Gap)
    }

    pub(crate) fn packed_rows(&self) -> &Rows<PackedRule> {
        &self.rows
    }
}

/// Sets the rule of merged ranges in `rows`, which ascend, except in rows that end the stack.
pub(crate) fn mark(rows: &mut Vec<Row<PackedRule>>, places: &[Range<Svma>], mark: PackedRule) {
    if places.is_empty() {
        return;
    }
    let marked_rule = |rule| match rule {
        PackedRule::END_OF_STACK => rule,
        _ => mark,
    };
    let mut marked = Vec::with_capacity(rows.len() + 2 * places.len());
    let mut rest = rows.iter().copied().peekable();
    let mut rule = PackedRule::GAP;
    for Range { start, end } in places.iter().cloned() {
        while let Some(row) = rest.next_if(|row| row.start < start) {
            rule = row.rule;
            marked.push(row);
        }
        let mut row = Row { start, rule };
        while let Some(next) = rest.next_if(|row| row.start < end) {
            if next.start > start && marked_rule(next.rule) != marked_rule(rule) {
                let rule = marked_rule(rule);
                marked.push(Row { rule, ..row });
                row.start = next.start;
            }
            rule = next.rule;
        }
        let inside = marked_rule(rule);
        marked.push(Row { rule: inside, ..row });
        if let Some(row) = rest.next_if(|row| row.start == end) {
            rule = row.rule;
        }
        marked.push(Row { start: end, rule });
    }
    marked.extend(rest);
    *rows = marked;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Reason;

    fn row(start: u64, rule: PackedRule) -> Row<PackedRule> {
        Row {
            start: Svma::new(start),
            rule,
        }
    }

    /// Returns the rule of rows for an address.
    fn rule_at(rows: &[Row<PackedRule>], address: u64) -> PackedRule {
        let after = rows.partition_point(|row| row.start.get() <= address);
        after
            .checked_sub(1)
            .map_or(PackedRule::GAP, |last| rows[last].rule)
    }

    /// Marked rows ascend. Only rules in marked ranges change, to the rule of the mark; those that end the
    /// stack do not.
    #[test]
    fn marks_change_rules_only_in_ranges() {
        let rows = [
            row(10, PackedRule::END_OF_STACK),
            row(20, PackedRule::unsupported(Reason::Malformed)),
            row(30, PackedRule::GAP),
        ];
        for switched in [
            &[(15, 16)][..],
            &[(10, 20)],
            &[(19, 20)],
            &[(18, 31)],
            &[(5, 12), (29, 30)],
            &[(15, 16), (17, 18), (25, 26)],
            &[(2, 5)],
            &[(35, 38)],
            &[],
        ] {
            let ranges = switched
                .iter()
                .map(|&(start, end)| Svma::new(start)..Svma::new(end));
            let ranges: Vec<_> = ranges.collect();
            for given in [
                PackedRule::unsupported(Reason::StackSwitch),
                PackedRule::END_OF_STACK,
            ] {
                let mut marked = rows.to_vec();
                mark(&mut marked, &ranges, given);
                assert!(marked.windows(2).all(|pair| pair[0].start < pair[1].start));
                for address in 0..40 {
                    let is_in = |&(start, end): &(u64, u64)| (start..end).contains(&address);
                    let expected = match rule_at(&rows, address) {
                        rule if rule == PackedRule::END_OF_STACK || !switched.iter().any(is_in) => rule,
                        _ => given,
                    };
                    assert_eq!(rule_at(&marked, address), expected, "{address} of {switched:?}");
                }
            }
        }
    }
}
