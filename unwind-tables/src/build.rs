//! Merges the functions of one or two sections into one table: order, overlaps, gaps.
//!
//! Overlap: the function with the greatest start at or below an address applies, or none if that function has
//! ended: the program's own unwinder finds the same through the search table of `.eh_frame_hdr`. Of several
//! functions with the same start, the first in the section applies. Code without CFI can be a signal
//! trampoline (`trampoline`); some functions leave the stack that their CFI describes (`switches`). Code
//! without CFI that has a frame pointer of its own (`framed`), or is the outermost of a stack (`entry`), is
//! marked.

use std::cell::OnceCell;
use std::ops::Range;

use crate::addr::Svma;
use crate::cfi::{self, Cfi, Function, Layout, Translate};
use crate::compact;
use crate::coverage::{CfiSource, Coverage};
use crate::elf::{ElfView, Segment};
use crate::entry;
use crate::error::{ImageError, TableError};
use crate::framed;
use crate::packed::PackedRule;
use crate::places::Places;
use crate::program::Programs;
use crate::ranges;
use crate::saves::{LongSaves, SavesRule};
use crate::switches;
use crate::table::{self, Row, RowRule, Rows, UnwindTable};
use crate::trampoline;

/// Maximum span of code per byte of the file: the index grows with the span, and a file of one page must not
/// make it take megabytes.
const MAX_SPAN_PER_BYTE: u64 = 16;
const MAX_SPAN_FLOOR: u64 = 16 << 20;

/// Builds the unwind table of an ELF file; without CFI, it has no rows.
///
/// # Errors
///
/// [`TableError::Image`] if the rows are too many or too far apart for an image.
pub fn build(view: &ElfView<'_>) -> Result<(UnwindTable, Coverage), TableError> {
    build_with(view, &Trampolines::new())
}

/// Ranges of an object's signal trampolines, once they have been searched for.
pub(crate) type Trampolines = OnceCell<Vec<Range<Svma>>>;

/// Builds as [`build`] does, with trampolines that may be known already.
pub(crate) fn build_with(
    view: &ElfView<'_>,
    trampolines: &Trampolines,
) -> Result<(UnwindTable, Coverage), TableError> {
    let mut programs = Programs::new(view.architecture());
    let (sections, mut rows) = rows(view, &mut programs, trampoline::rule, trampolines)?;
    let code = ranges::merge(view.code_ranges());
    let gaps = framed::gaps(&rows, &code);
    table::mark(&mut rows, &framed::find(view, &gaps), PackedRule::FRAMED_GAP);
    let functions = sections
        .iter()
        .flat_map(|cfi| &cfi.functions)
        .map(|function| &function.range);
    table::mark(
        &mut rows,
        &entry::of_contexts(view, functions),
        PackedRule::END_OF_STACK,
    );
    let outermost = gaps.iter().find_map(|gap| entry::outermost(gap, view.entry()));
    table::mark(&mut rows, outermost.as_slice(), PackedRule::END_OF_STACK);
    switches::find(view, &code).mark(&mut rows);
    check_span(&rows, view)?;
    let [eh_frame, debug_frame] = &sections;
    let table = UnwindTable::from_packed(rows, programs);
    let table = table.ok_or(TableError::Malformed("rows out of order"))?;
    let mut coverage = Coverage::of_table(&table, &code, &gaps);
    coverage.source = match (eh_frame.functions.is_empty(), debug_frame.functions.is_empty()) {
        (true, true) => CfiSource::None,
        (false, true) => CfiSource::EhFrame,
        (true, false) => CfiSource::DebugFrame,
        (false, false) => CfiSource::Both,
    };
    for cfi in &sections {
        coverage.fdes += cfi.fdes;
        coverage.malformed_fdes += cfi.malformed;
        coverage.outside_fdes += cfi.outside;
        coverage.raw_rows += cfi.rows.len() as u64;
    }
    Ok((table, coverage))
}

/// Builds the table of saves of an ELF file.
///
/// # Errors
///
/// Fails as [`build`] does.
pub fn build_saves(view: &ElfView<'_>) -> Result<SavesTable, TableError> {
    build_saves_with(view, &Trampolines::new())
}

/// Builds as [`build_saves`] does, with trampolines that may be known already.
pub(crate) fn build_saves_with(
    view: &ElfView<'_>,
    trampolines: &Trampolines,
) -> Result<SavesTable, TableError> {
    let mut long = LongSaves::default();
    let (_, rows) = rows(view, &mut long, trampoline::saves, trampolines)?;
    let rows = Rows::new(rows).ok_or(TableError::Malformed("rows out of order"))?;
    Ok(SavesTable { rows, long })
}

/// Table of saves: where functions save registers.
#[derive(Debug)]
pub struct SavesTable {
    /// Rows, one for each change.
    pub rows: Rows<SavesRule>,
    /// Long entries that rows refer to.
    pub long: LongSaves,
}

impl SavesTable {
    /// The table with its rows at their places in an image.
    pub(crate) fn placed(self, places: &Places) -> Self {
        Self {
            rows: self.rows.placed(places),
            ..self
        }
    }
}

/// CFI of `.eh_frame` and of `.debug_frame`, and the rows of both merged.
type Read<R> = ([Cfi<R>; 2], Vec<Row<R>>);

/// Reads the rows of a file. `of_trampoline` makes the rule of a signal trampoline without CFI.
fn rows<T: Translate>(
    view: &ElfView<'_>,
    rules: &mut T,
    of_trampoline: fn(&mut T) -> T::Rule,
    trampolines: &Trampolines,
) -> Result<Read<T::Rule>, TableError> {
    let executable = view.segments().iter().filter(|segment| segment.executable);
    let code = ranges::merge(executable.map(Segment::file_backed));
    let mut read = |section: Option<_>, layout| match section {
        Some(section) => cfi::read(&section, layout, view.architecture(), &code, rules),
        None => Ok(Cfi::default()),
    };
    let sections = [
        read(view.eh_frame(), Layout::EhFrame)?,
        read(view.debug_frame(), Layout::DebugFrame)?,
    ];
    let described = fill_gaps(pieces(&sections[0]), pieces(&sections[1]));
    let trampolines = trampolines.get_or_init(|| {
        let covered = described.iter().map(|piece| &piece.range);
        // Code ranges, not executable segments, which often contain as much data as code.
        let gaps = ranges::without(&ranges::merge(view.code_ranges()), covered);
        trampoline::find(view.architecture(), gaps, view.code_bytes())
    });
    let found = match trampolines.as_slice() {
        [] => Cfi::default(),
        found => trampoline::describe(found, of_trampoline(rules)),
    };
    let mut rows = lay_out(&fill_gaps(described, pieces(&found)));
    compact::compact(&mut rows);
    check_span(&rows, view)?;
    Ok((sections, rows))
}

fn check_span<R>(rows: &[Row<R>], view: &ElfView<'_>) -> Result<(), ImageError> {
    let places = Places::of(view.segments());
    let place = |row: Option<&Row<R>>| places.in_image(row?.start);
    let (Some(first), Some(last)) = (place(rows.first()), place(rows.last())) else {
        return Ok(());
    };
    let span = last.offset_from(first);
    let limit = view
        .byte_len()
        .saturating_mul(MAX_SPAN_PER_BYTE)
        .max(MAX_SPAN_FLOOR);
    if span > limit {
        Err(ImageError::TooSparse(span))
    } else {
        Ok(())
    }
}

/// A range of code that one function describes.
#[derive(Clone, Debug)]
struct Piece<'a, R = PackedRule> {
    range: Range<Svma>,
    /// The function's rows; the first may start before the range, the last after it.
    rows: &'a [Row<R>],
}

/// Returns the pieces of one section: ascending, not overlapping.
fn pieces<R>(cfi: &Cfi<R>) -> Vec<Piece<'_, R>> {
    let mut functions: Vec<&Function> = cfi.functions.iter().collect();
    functions.sort_by_key(|function| function.range.start);
    functions.dedup_by_key(|function| function.range.start);
    let starts = functions.iter().skip(1).map(|function| function.range.start);
    let limits = starts.chain([Svma::new(u64::MAX)]);
    let piece = |(function, limit): (&&Function, Svma)| Piece {
        range: function.range.start..function.range.end.min(limit),
        rows: &cfi.rows[function.rows.clone()],
    };
    functions.iter().zip(limits).map(piece).collect()
}

/// Returns `first`, with the pieces of `second` where `first` has none.
fn fill_gaps<'a, R>(first: Vec<Piece<'a, R>>, second: Vec<Piece<'a, R>>) -> Vec<Piece<'a, R>> {
    if second.is_empty() {
        return first;
    }
    let mut filled = Vec::with_capacity(first.len() + second.len());
    let mut second = second.into_iter().peekable();
    let mut gap_start = Svma::new(0);
    let gap_ends = first
        .iter()
        .map(|piece| piece.range.start)
        .chain([Svma::new(u64::MAX)]);
    let gap_ends: Vec<_> = gap_ends.collect();
    let mut first = first.into_iter();
    for gap_end in gap_ends {
        while let Some(piece) = second.peek_mut() {
            piece.range.start = piece.range.start.max(gap_start);
            let (start, end) = (piece.range.start, piece.range.end.min(gap_end));
            if start < end {
                filled.push(Piece {
                    range: start..end,
                    rows: piece.rows,
                });
            }
            if piece.range.end > gap_end {
                break;
            }
            second.next();
        }
        if let Some(piece) = first.next() {
            gap_start = piece.range.end;
            filled.push(piece);
        }
    }
    filled
}

/// Concatenates the rows of all pieces, with a gap row wherever CFI is missing, including the padding between
/// functions: return addresses are looked up one byte lower, and a stack that a program built by hand can
/// begin with the address of a function that was never called.
fn lay_out<R: RowRule>(pieces: &[Piece<'_, R>]) -> Vec<Row<R>> {
    let row_count: usize = pieces.iter().map(|piece| piece.rows.len()).sum();
    let mut rows: Vec<Row<R>> = Vec::with_capacity(row_count + row_count / 8 + 1);
    let mut covered_to = None;
    for piece in pieces {
        if let Some(end) = covered_to
            && end != piece.range.start
        {
            rows.push(Row {
                start: end,
                rule: R::GAP,
            });
        }
        let after = piece.rows.partition_point(|row| row.start <= piece.range.start);
        let Some(first) = after.checked_sub(1).and_then(|first| piece.rows.get(first)) else {
            continue;
        };
        rows.push(Row {
            start: piece.range.start,
            rule: first.rule,
        });
        let rest = piece.rows[after..]
            .iter()
            .take_while(|row| row.start < piece.range.end);
        for row in rest {
            rows.push(*row);
        }
        covered_to = Some(piece.range.end);
    }
    if let Some(end) = covered_to {
        rows.push(Row {
            start: end,
            rule: R::GAP,
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};

    /// Addresses of the made-up code.
    const SPACE: u64 = 400;

    fn frame(offset: i32) -> UnwindRule {
        UnwindRule::Frame(FrameRule {
            cfa: CfaRule::Offset {
                register: Register::Sp,
                offset: 8 * offset,
            },
            ra: Saved::AtCfa(-8),
            ra_signed: false,
            fp: Saved::Same,
            signal_frame: false,
        })
    }

    /// Returns a section of functions of two rows each, with all rules distinct.
    fn cfi(ranges: &[(u64, u64)], first_offset: i32) -> Cfi<UnwindRule> {
        let mut cfi = Cfi::default();
        for (&(start, length), number) in ranges.iter().zip(0..) {
            let first_row = cfi.rows.len();
            let ends_stack = number % 5 == 4;
            let second = if ends_stack {
                UnwindRule::EndOfStack
            } else {
                frame(first_offset + 2 * number + 1)
            };
            let rows = [
                (start, frame(first_offset + 2 * number)),
                (start + length / 2, second),
            ];
            let rows = rows.map(|(start, rule)| Row {
                start: Svma::new(start),
                rule,
            });
            cfi.rows.extend(if length < 2 { &rows[..1] } else { &rows });
            cfi.functions.push(Function {
                range: Svma::new(start)..Svma::new(start + length),
                rows: first_row..cfi.rows.len(),
            });
        }
        cfi
    }

    /// Returns the rule that the module's documentation requires for an address of one section.
    fn rule_of(cfi: &Cfi<UnwindRule>, address: Svma) -> Option<UnwindRule> {
        let below = cfi
            .functions
            .iter()
            .filter(|function| function.range.start <= address);
        let start = below.map(|function| function.range.start).max()?;
        let function = cfi
            .functions
            .iter()
            .find(|function| function.range.start == start)?;
        let mut rows = cfi.rows[function.rows.clone()].iter().rev();
        let row = rows.find(|row| row.start <= address)?;
        (address < function.range.end).then_some(row.rule)
    }

    /// Returns the rules that the module's documentation requires for both sections, at every address.
    fn expected(eh_frame: &Cfi<UnwindRule>, debug_frame: &Cfi<UnwindRule>) -> Vec<UnwindRule> {
        let rule_of = |address| rule_of(eh_frame, address).or_else(|| rule_of(debug_frame, address));
        let addresses = (0..SPACE).map(Svma::new);
        addresses
            .map(|address| rule_of(address).unwrap_or(UnwindRule::Gap))
            .collect()
    }

    fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        vec((1..300_u64, prop_oneof![1..30_u64, 1..90_u64]), 0..12)
    }

    proptest! {
        /// At every address, the table has the rule that the documented order of functions and sections
        /// requires.
        #[test]
        fn table_has_the_rules_of_the_winning_function(eh_frame in ranges(), debug_frame in ranges()) {
            let (eh_frame, debug_frame) = (cfi(&eh_frame, 1000), cfi(&debug_frame, 2000));
            let mut rows = lay_out(&fill_gaps(pieces(&eh_frame), pieces(&debug_frame)));
            compact::compact(&mut rows);
            let table = UnwindTable::from_rows(rows).expect("ascending rows with a closing gap");
            let rules: Vec<_> = (0..SPACE).map(|address| table.rule_at(Svma::new(address))).collect();
            prop_assert_eq!(rules, expected(&eh_frame, &debug_frame));
        }
    }
}
