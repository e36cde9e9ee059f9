//! Statistics of an object's table: rows and bytes of code by kind of rule. Numbers only; printing is
//! elsewhere.

use std::ops::Range;

use crate::addr::Svma;
use crate::packed::{KIND_BITS, PackedRule, kind};
use crate::program::Programs;
use crate::rule::{CfaRule, Reason, Register, UnwindRule};
use crate::table::UnwindTable;

/// Sections that a table comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CfiSource {
    /// The object has no CFI.
    #[default]
    None,
    /// `.eh_frame`
    EhFrame,
    /// `.debug_frame`
    DebugFrame,
    /// `.eh_frame`, and `.debug_frame` for code that it does not cover.
    Both,
}

/// Kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleKind {
    /// The CFA is at an offset from the stack pointer.
    StackPointer,
    /// The CFA is at an offset from the frame pointer.
    FramePointer,
    /// The CFA is read from memory (DRAP).
    Deref,
    /// The rule of a procedure linkage table (PLT).
    Plt,
    /// The caller is computed by a rule program.
    Program,
    /// The frame of a signal handler's caller.
    SignalFrame,
    /// The outermost frame.
    EndOfStack,
    /// CFI that no rule expresses; see [`Coverage::unsupported`] for counts by reason.
    Unsupported,
    /// No CFI.
    Gap,
}

impl RuleKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::StackPointer,
        Self::FramePointer,
        Self::Deref,
        Self::Plt,
        Self::Program,
        Self::SignalFrame,
        Self::EndOfStack,
        Self::Unsupported,
        Self::Gap,
    ];

    /// Returns the kind of a rule of a table with these programs.
    pub fn of(rule: UnwindRule, programs: &Programs) -> Self {
        match rule {
            UnwindRule::Program(program) if programs.is_signal_frame(program) => Self::SignalFrame,
            UnwindRule::Program(_) => Self::Program,
            UnwindRule::Frame(frame) => match frame.cfa {
                CfaRule::Offset {
                    register: Register::Sp,
                    ..
                } => Self::StackPointer,
                CfaRule::Offset {
                    register: Register::Fp,
                    ..
                } => Self::FramePointer,
                CfaRule::Deref { .. } => Self::Deref,
                CfaRule::Plt { .. } => Self::Plt,
            },
            UnwindRule::EndOfStack => Self::EndOfStack,
            UnwindRule::Gap => Self::Gap,
            UnwindRule::Unsupported(_) => Self::Unsupported,
        }
    }

    /// Returns the stable name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::StackPointer => "sp",
            Self::FramePointer => "fp",
            Self::Deref => "deref",
            Self::Plt => "plt",
            Self::Program => "program",
            Self::SignalFrame => "signal_frame",
            Self::EndOfStack => "end_of_stack",
            Self::Unsupported => "unsupported",
            Self::Gap => "gap",
        }
    }
}

/// Maximum number of bytes between two functions that count as padding, not as code without CFI: functions
/// are aligned to 16.
pub const MAX_PADDING: u64 = 15;

/// Number of rows, and bytes of code that they cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of code.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, count: Self) {
        self.rows += count.rows;
        self.bytes += count.bytes;
    }
}

/// Statistics of an object's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Sections that its rows come from.
    pub source: CfiSource,
    /// Number of FDEs in the sections.
    pub fdes: u32,
    /// Number of FDEs that could not be read completely.
    pub malformed_fdes: u32,
    /// Number of FDEs whose code is outside of all executable segments.
    pub outside_fdes: u32,
    /// Number of rows before overlaps were cut and equal neighbours merged.
    pub raw_rows: u64,
    /// Number of rows of the table.
    pub rows: u64,
    /// Bytes of code without CFI, excluding padding between functions.
    pub gap_bytes: u64,
    /// Bytes of executable sections, or of executable segments in a file without section headers.
    pub code_bytes: u64,
    kinds: [Count; RuleKind::ALL.len()],
    reasons: [Count; Reason::ALL.len()],
}

/// Divisor for the largest share of code without CFI in objects that are built with CFI (assembly in
/// cryptographic libraries).
const FEW_GAPS: u64 = 4;

impl Coverage {
    /// Returns true if so much code has no CFI that the CFI may be elsewhere: in the object's debug file.
    pub fn has_many_gaps(&self) -> bool {
        self.gap_bytes > self.code_bytes / FEW_GAPS
    }

    /// Counts a table's rows. `code` is the ascending ranges that can hold code, `gaps` their parts between
    /// rows that have no CFI.
    pub(crate) fn of_table(table: &UnwindTable, code: &[Range<Svma>], gaps: &[Range<Svma>]) -> Self {
        let rows = table.packed_rows().as_slice();
        let without_cfi = if rows.is_empty() { code } else { gaps };
        let mut coverage = Self {
            rows: rows.len() as u64,
            gap_bytes: without_cfi.iter().map(length).sum(),
            code_bytes: code.iter().map(length).sum(),
            ..Self::default()
        };
        let mut counts = KindCounts::default();
        for pair in rows.windows(2) {
            let bytes = pair[1].start.offset_from(pair[0].start);
            if !counts.add(pair[0].rule, bytes) {
                coverage.add(table.unpack(pair[0].rule), table, Count { rows: 1, bytes });
            }
        }
        for (rule, count) in counts.0 {
            coverage.add(table.unpack(rule), table, count);
        }
        if let Some(closing) = rows.last() {
            coverage.add(table.unpack(closing.rule), table, Count { rows: 1, bytes: 0 });
        }
        coverage
    }

    fn add(&mut self, rule: UnwindRule, table: &UnwindTable, count: Count) {
        self.kinds[RuleKind::of(rule, table.programs()) as usize].add(count);
        if let UnwindRule::Unsupported(reason) = rule {
            self.reasons[reason as usize - 1].add(count);
        }
    }

    /// Returns the count of one kind of rule.
    pub fn of_kind(&self, kind: RuleKind) -> Count {
        self.kinds[kind as usize]
    }

    /// Returns the count of rows that are unsupported for one reason.
    pub fn unsupported(&self, reason: Reason) -> Count {
        self.reasons[reason as usize - 1]
    }
}

/// Counts by kind of packed rule, with a sample rule of each kind. For nearly all rows the kind alone says
/// what they count as, so they are not unpacked.
struct KindCounts([(PackedRule, Count); 1 << KIND_BITS]);

impl Default for KindCounts {
    fn default() -> Self {
        Self([(PackedRule::GAP, Count::default()); 1 << KIND_BITS])
    }
}

impl KindCounts {
    /// Counts a row and returns true; returns false for kinds where operands also decide what a row counts
    /// as.
    fn add(&mut self, rule: PackedRule, bytes: u64) -> bool {
        let is_counted = !matches!(rule.kind(), kind::WIDE | kind::STOP);
        if is_counted {
            let (sample, count) = &mut self.0[rule.kind() as usize];
            *sample = rule;
            count.add(Count { rows: 1, bytes });
        }
        is_counted
    }
}

fn length(range: &Range<Svma>) -> u64 {
    range.end.offset_from(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framed;
    use crate::table::Row;

    fn range(start: u64, end: u64) -> Range<Svma> {
        Svma::new(start)..Svma::new(end)
    }

    /// Bytes are counted by kind of rule; gap bytes only where code lies, including before the first row and
    /// after the last, and only in gaps longer than padding.
    #[test]
    fn bytes_are_counted_by_rule() {
        let unsupported = UnwindRule::Unsupported(Reason::CfaRegister);
        let rows = [
            (0x100, UnwindRule::EndOfStack),
            (0x110, unsupported),
            (0x118, UnwindRule::Gap),
            (0x200, UnwindRule::EndOfStack),
            (0x204, UnwindRule::Gap),
            (0x208, UnwindRule::EndOfStack),
            (0x220, UnwindRule::Gap),
        ];
        let rows = rows.map(|(start, rule)| Row {
            start: Svma::new(start),
            rule,
        });
        let table = UnwindTable::from_rows(rows.into()).expect("ascending rows with a closing gap");
        let code = [range(0xf0, 0x120), range(0x1f0, 0x210), range(0x300, 0x301)];
        let gaps = framed::gaps(table.packed_rows().as_slice(), &code);
        let coverage = Coverage::of_table(&table, &code, &gaps);
        let count = |rows, bytes| Count { rows, bytes };
        assert_eq!(coverage.of_kind(RuleKind::EndOfStack), count(3, 0x2c));
        assert_eq!(coverage.of_kind(RuleKind::Unsupported), count(1, 8));
        assert_eq!(coverage.unsupported(Reason::CfaRegister), count(1, 8));
        assert_eq!(coverage.unsupported(Reason::Malformed), count(0, 0));
        assert_eq!(coverage.of_kind(RuleKind::Gap), count(3, 0x200 - 0x118 + 4));
        assert_eq!(coverage.code_bytes, 0x30 + 0x20 + 1);
        assert_eq!(coverage.gap_bytes, 0x10 + 8 + 0x10 + 1);
        assert_eq!(coverage.rows, 7);
    }
}
