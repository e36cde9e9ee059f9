//! Statistics of an object's table: rows and bytes of code by kind of rule. Numbers only; printing is elsewhere.

use std::ops::Range;

use crate::addr::Svma;
use crate::packed::PackedRule;
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

/// MAX bytes between two functions that count as padding, not as code without CFI: functions are aligned to 16.
pub const MAX_PADDING: u64 = 15;

/// Number of rows, and bytes of code that they cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of code.
    pub bytes: u64,
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

/// MAX share of code without CFI, as a divisor, of objects that are built with CFI: assembly in libraries of cryptography.
const FEW_GAPS: u64 = 4;

impl Coverage {
    /// True if so much code has no CFI that it may be elsewhere: in the object's debug file.
    pub fn has_many_gaps(&self) -> bool {
        self.gap_bytes > self.code_bytes / FEW_GAPS
    }

    /// Counts a table's rows. `code` is the ascending ranges that can hold code.
    pub(crate) fn of_table(table: &UnwindTable, code: &[Range<Svma>]) -> Self {
        let mut coverage = Self {
            rows: table.packed_rows().as_slice().len() as u64,
            ..Self::default()
        };
        coverage.code_bytes = code.iter().map(length).sum();
        let rows = table.packed_rows().as_slice();
        let mut covered_code = 0;
        let mut code = code.iter().peekable();
        for pair in rows.windows(2) {
            let range = pair[0].start..pair[1].start;
            coverage.count(pair[0].rule, table, length(&range));
            if pair[0].rule != PackedRule::GAP || length(&range) <= MAX_PADDING {
                covered_code += overlap(&mut code, &range);
            }
        }
        if let Some(closing) = rows.last() {
            coverage.count(closing.rule, table, 0);
        }
        coverage.gap_bytes = coverage.code_bytes - covered_code;
        coverage
    }

    fn count(&mut self, rule: PackedRule, table: &UnwindTable, bytes: u64) {
        let rule = table.unpack(rule);
        let add = |count: &mut Count| {
            count.rows += 1;
            count.bytes += bytes;
        };
        add(&mut self.kinds[RuleKind::of(rule, table.programs()) as usize]);
        if let UnwindRule::Unsupported(reason) = rule {
            add(&mut self.reasons[reason as usize - 1]);
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

fn length(range: &Range<Svma>) -> u64 {
    range.end.offset_from(range.start)
}

/// Returns the bytes of `range` that lie in `code`. Ranges must be passed in ascending order.
fn overlap<'a>(
    code: &mut std::iter::Peekable<impl Iterator<Item = &'a Range<Svma>>>,
    range: &Range<Svma>,
) -> u64 {
    let mut bytes = 0;
    while let Some(section) = code.peek() {
        let (start, end) = (section.start.max(range.start), section.end.min(range.end));
        if start < end {
            bytes += end.offset_from(start);
        }
        if section.end > range.end {
            break;
        }
        code.next();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Row;

    fn range(start: u64, end: u64) -> Range<Svma> {
        Svma::new(start)..Svma::new(end)
    }

    /// Bytes are counted by kind of rule; gap bytes only where code lies, including before the first row and after the
    /// last, and only in gaps longer than padding.
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
        let coverage = Coverage::of_table(
            &table,
            &[range(0xf0, 0x120), range(0x1f0, 0x210), range(0x300, 0x301)],
        );
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
