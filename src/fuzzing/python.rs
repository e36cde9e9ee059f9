//! Claims about CPython: its facts in a file, and the lines and text of its code.

use unwind_tables::elf::ElfView;

use crate::allocator::parts::parts_elsewhere;
use crate::process::python::{LineFormat, PythonBuild, TextState};
use crate::symbolize::python::{Kept, LineTable, MAX_TEXT, decode_text};

/// Number of instructions whose lines are looked up.
const MAX_INSTRUCTIONS: u32 = 512;

/// For any file, the functions that are found are in its code, their parts do not overlap, and a second
/// search finds the same.
pub(super) fn builds(bytes: &[u8]) {
    let found = PythonBuild::find(bytes);
    assert_eq!(found, PythonBuild::find(bytes));
    let Ok(Some(build)) = found else { return };
    let view = ElfView::parse_any(bytes).expect("it was read");
    let ends = [build.evaluator.end.wrapping_sub(1), build.evaluator.start];
    for address in ends.into_iter().chain([build.code_dealloc]) {
        let mut code = view.segments().iter().filter(|segment| segment.executable);
        assert!(
            code.any(|code| code.file_backed().contains(&address)),
            "{address}"
        );
    }
    assert!(build.evaluator.start < build.evaluator.end, "{build:?}");
    let parts = parts_elsewhere(bytes, &build.evaluator);
    assert!(parts.iter().all(|part| part.start < part.end), "{parts:?}");
    assert!(parts.is_sorted_by(|one, next| one.end <= next.start), "{parts:?}");
    assert_eq!(
        (build.version.major, build.version.minor),
        (3, build.layout.minor)
    );
}

/// Returns true if CPython is found in a file.
#[cfg(test)]
pub(super) fn is_build(bytes: &[u8]) -> bool {
    matches!(PythonBuild::find(bytes), Ok(Some(_)))
}

/// A line is positive. A table that is cut has the same lines, or none, unless its last line has no end. Text
/// has no more characters than bytes, and no control characters. The bytes are: a form or a state, a first
/// line or a length, a table or text.
pub(super) fn lines(bytes: &[u8]) {
    let Some((&[kind, first @ ..], table)) = bytes.split_first_chunk::<5>() else {
        return;
    };
    let first = i32::from_le_bytes(first);
    let formats = [LineFormat::Starts, LineFormat::Ranges, LineFormat::Locations];
    let format = formats[usize::from(kind) % formats.len()];
    let new = |table: &[u8]| LineTable::new(format, first, table).expect("a small table");
    let [whole, cut] = [new(table), new(&table[..table.len() / 2])];
    for instruction in (0..MAX_INSTRUCTIONS).chain([u32::MAX - 1, u32::MAX]) {
        let [line, of_cut] = [&whole, &cut].map(|table| table.line(instruction));
        assert!(line != Some(0), "{instruction}");
        let is_same = of_cut.is_none_or(|_| of_cut == line);
        assert!(
            is_same || format == LineFormat::Starts,
            "{instruction}: {of_cut:?} of {line:?}"
        );
    }
    let length = u64::from(first.cast_unsigned());
    for kept in [Kept::Start, Kept::End] {
        let text = decode_text(TextState(kind.into()), length, table, kept).unwrap_or_default();
        let most = table.len().min(MAX_TEXT) + 1;
        assert!(
            text.chars().count() <= most && !text.contains(char::is_control),
            "{text:?}"
        );
    }
}
