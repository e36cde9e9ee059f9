//! An object's unwind information as sorted rows with explicit gaps: what `image` packs.

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::packed::PackedRule;
use crate::program::Programs;
use crate::rule::UnwindRule;

/// What a row can say: a rule, or where registers are saved.
pub trait RowRule: Copy + Eq {
    /// Nothing is said.
    const GAP: Self;

    /// In 31 bits; `None` for a rule that does not fit, which no table has.
    fn pack(self) -> Option<PackedRule>;
}

impl RowRule for PackedRule {
    const GAP: Self = Self::GAP;

    fn pack(self) -> Option<PackedRule> {
        Some(self)
    }
}

/// Of x86-64.
impl RowRule for UnwindRule {
    const GAP: Self = Self::Gap;

    fn pack(self) -> Option<PackedRule> {
        PackedRule::pack(self, Architecture::default())
    }
}

/// A rule and the first address it holds for; it holds up to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<R = UnwindRule> {
    /// First address.
    pub start: Svma,
    /// The rule.
    pub rule: R,
}

/// Rows in ascending order of address, no two at the same one.
///
/// Invariant: the last row, if there is one, is a gap, so every address is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows<R = UnwindRule>(Vec<Row<R>>);

impl<R: RowRule> Rows<R> {
    /// Takes rows that hold the invariant; `None` when they do not.
    pub fn new(rows: Vec<Row<R>>) -> Option<Self> {
        let ascending = rows.windows(2).all(|pair| pair[0].start < pair[1].start);
        let closed = rows.last().is_none_or(|row| row.rule == R::GAP);
        (ascending && closed).then_some(Self(rows))
    }

    /// The rows.
    pub fn as_slice(&self) -> &[Row<R>] {
        &self.0
    }

    /// What is said of one address: nothing before the first row.
    pub fn rule_at(&self, svma: Svma) -> R {
        let after = self.0.partition_point(|row| row.start <= svma);
        match after.checked_sub(1) {
            Some(last) => self.0[last].rule,
            None => R::GAP,
        }
    }
}

/// The rules of an object, and the programs that they refer to. Packed: a table is made once and read through, and
/// rules as they are written out would be two and a half times as much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindTable {
    rows: Rows<PackedRule>,
    programs: Programs,
}

impl UnwindTable {
    /// Takes rows that ascend and end in a gap; `None` when they do not, or when a rule needs a program.
    pub fn from_rows(rows: Vec<Row>) -> Option<Self> {
        Self::with_programs(rows, Programs::default())
    }

    /// The same, and the programs that the rows refer to.
    pub fn with_programs(rows: Vec<Row>, programs: Programs) -> Option<Self> {
        let architecture = programs.architecture();
        let packed = rows.into_iter().map(|Row { start, rule }| {
            let rule = PackedRule::pack(rule, architecture)?;
            Some(Row { start, rule })
        });
        Self::from_packed(packed.collect::<Option<_>>()?, programs)
    }

    /// The same of packed rules.
    pub(crate) fn from_packed(rows: Vec<Row<PackedRule>>, programs: Programs) -> Option<Self> {
        let rows = Rows::new(rows)?;
        Some(Self { rows, programs })
    }

    /// The rows, written out.
    pub fn rows(&self) -> Vec<Row> {
        let rows = self.rows.as_slice().iter();
        let written_out = rows.map(|&Row { start, rule }| Row {
            start,
            rule: self.unpack(rule),
        });
        written_out.collect()
    }

    /// The programs that rules refer to.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The rule for one address: a gap before the first row.
    pub fn rule_at(&self, svma: Svma) -> UnwindRule {
        self.unpack(self.rows.rule_at(svma))
    }

    /// What a table holds was packed.
    pub(crate) fn unpack(&self, rule: PackedRule) -> UnwindRule {
        let written_out = rule.unpack(self.programs.architecture());
        written_out.unwrap_or(UnwindRule::Gap)
    }

    pub(crate) fn packed_rows(&self) -> &Rows<PackedRule> {
        &self.rows
    }
}
