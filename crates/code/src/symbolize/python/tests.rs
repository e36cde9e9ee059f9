//! Lines of the interpreter's library, and of awkward code by other versions, as the interpreters have them;
//! and text of all widths.

use std::path::PathBuf;
use std::process::Command;

use super::lines::MAX_TABLE;
use super::*;
use memleak_process::python::{LAYOUTS, LineFormat};

/// Environment variable that names another interpreter than Debian's.
const OTHER: &str = "MEMLEAK_TEST_PYTHON";
/// Output of `lines.py` for `awkward.py`, by interpreters from 3.9 to 3.15.
const AWKWARD: [(u8, &str); 7] = [
    (9, include_str!("tests/lines-3.9.txt")),
    (10, include_str!("tests/lines-3.10.txt")),
    (11, include_str!("tests/lines-3.11.txt")),
    (12, include_str!("tests/lines-3.12.txt")),
    (13, include_str!("tests/lines-3.13.txt")),
    (14, include_str!("tests/lines-3.14.txt")),
    (15, include_str!("tests/lines-3.15.txt")),
];
const LIBRARY: [&str; 16] = [
    "_pydecimal",
    "argparse",
    "ast",
    "asyncio.tasks",
    "contextlib",
    "dataclasses",
    "datetime",
    "enum",
    "inspect",
    "logging",
    "pathlib",
    "re",
    "subprocess",
    "tarfile",
    "typing",
    "unittest.mock",
];

fn format_of(minor: u8) -> LineFormat {
    match minor {
        9 => LineFormat::Starts,
        10 => LineFormat::Ranges,
        _ => LineFormat::Locations,
    }
}

fn bytes_of(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks_exact(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16);
    pairs.map(|pair| byte(pair).expect("digits")).collect()
}

/// Code with its table, and the line of each instruction, as `lines.py` prints it.
struct Code<'a> {
    name: &'a str,
    table: LineTable,
    lines: Vec<Option<u32>>,
}

impl<'a> Code<'a> {
    fn read(format: LineFormat, printed: &'a str) -> Self {
        let mut words = printed.split(' ');
        let [name, first, table] = [0; 3].map(|_| words.next().expect("a word"));
        let table = bytes_of(table.trim_matches('-'));
        let table = LineTable::new(format, first.parse().expect("a line"), &table);
        let lines = words.flat_map(|piece| {
            let (bytes, line) = piece.split_once(':').expect("bytes and a line");
            let [bytes, line] = [bytes, line].map(|number| number.parse::<u32>().expect("a number"));
            vec![Some(line).filter(|&line| line > 0); bytes as usize / 2]
        });
        Self {
            name,
            table: table.expect("of usual size"),
            lines: lines.collect(),
        }
    }

    /// Compares each instruction's line; returns how many there are, and how many have none.
    fn check(&self) -> [usize; 2] {
        let at = (0..).step_by(2);
        let found = at.take(self.lines.len()).map(|at| self.table.line(at));
        let found: Vec<_> = found.collect();
        assert_eq!(found, self.lines, "{}", self.name);
        [found.len(), found.iter().filter(|line| line.is_none()).count()]
    }
}

/// Compares all that was printed by one version.
fn check(minor: u8, printed: &str) -> [usize; 2] {
    let format = format_of(minor);
    let counts = printed.lines().map(|code| Code::read(format, code).check());
    counts.fold([0; 2], |[all, none], [more, more_none]| {
        [all + more, none + more_none]
    })
}

/// For each instruction of much of the library, the line is that of the interpreter, with columns in the
/// tables and without.
#[test]
fn lines_of_the_library() {
    for options in [&[][..], &["-X", "no_debug_ranges"]] {
        let interpreter = std::env::var_os(OTHER).map_or_else(|| "/usr/bin/python3".into(), PathBuf::from);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/symbolize/python/tests/lines.py");
        let mut python = Command::new(interpreter);
        let minor = python
            .args(["-c", "import sys; print(sys.version_info[1])"])
            .output();
        let minor = String::from_utf8(minor.expect("an interpreter").stdout).expect("UTF-8");
        let mut python = Command::new(python.get_program());
        let printed = python.args(options).arg(script).args(LIBRARY).output();
        let printed = String::from_utf8(printed.expect("an interpreter").stdout).expect("UTF-8");
        let [all, none] = check(minor.trim().parse().expect("a version"), &printed);
        assert!(all > 50_000, "{all} instructions, {none} without a line");
    }
}

/// Lines that go back, far ahead, or over long ranges, and instructions without a line, are those of each
/// version's interpreter.
#[test]
fn lines_of_each_version() {
    for (minor, printed) in AWKWARD {
        let [all, none] = check(minor, printed);
        assert!(all > 300, "3.{minor}: {all} instructions");
        // 3.9 has a line for everything.
        assert_eq!(none > 0, minor > 9, "3.{minor}: {none} without a line");
    }
}

/// A table that is cut has the same line or none. (In 3.9 the last line goes on to the end.)
#[test]
fn cut_tables_have_the_same_lines_or_none() {
    for (minor, printed) in AWKWARD.into_iter().filter(|&(minor, _)| minor > 9) {
        for code in printed.lines() {
            let whole = Code::read(format_of(minor), code);
            let mut words: Vec<&str> = code.split(' ').collect();
            let table = words[2];
            // Some forty cuts of long ones.
            for digits in (2..table.len()).step_by(2 * (1 + table.len() / 80)) {
                words[2] = &table[..digits];
                let cut = Code::read(format_of(minor), &words.join(" ")).table;
                let at = (0..).step_by(2).take(whole.lines.len());
                let differs = at.zip(&whole.lines).find(|&(at, line)| {
                    let found = cut.line(at);
                    found.is_some() && found != *line
                });
                assert_eq!(differs, None, "3.{minor}: {} of {code}", digits / 2);
            }
        }
    }
}

/// There is no line beyond the end of a table, and none for sums that overflow.
#[test]
fn damaged_tables_have_no_line() {
    let line = |format, first, table: &[u8], at| LineTable::new(format, first, table)?.line(at);
    for format in [LineFormat::Ranges, LineFormat::Locations] {
        assert_eq!(line(format, 1, &[], 0), None, "{format:?}");
    }
    assert_eq!(line(LineFormat::Starts, 7, &[], 4), Some(7));
    for first in [0, -1, i32::MIN] {
        assert_eq!(line(LineFormat::Starts, first, &[], 4), None, "{first}");
    }
    assert_eq!(line(LineFormat::Starts, i32::MAX, &[0, 1], 0), None);
    assert_eq!(line(LineFormat::Ranges, i32::MAX, &[2, 1], 0), None);
    assert_eq!(line(LineFormat::Ranges, i32::MIN, &[2, 0x81], 0), None);
    assert_eq!(line(LineFormat::Ranges, 9, &[2, 0x80, 2, 1], 0), None, "no line");
    assert_eq!(line(LineFormat::Ranges, 9, &[2, 0x80, 2, 1], 2), Some(10));
    // An entry must begin with a byte that says so.
    assert_eq!(line(LineFormat::Locations, 9, &[0x50, 0x80], 0), None);
    // Differences: none, 2 and -2 in one byte, 32 in two, cut off, and of too many.
    for (entry, found) in [
        (&[0xe8][..], None),
        (&[0xe8, 4], Some(11)),
        (&[0xe8, 5], Some(7)),
        (&[0xe8, 0x40, 1], Some(41)),
        (&[0xe8, 0x40], None),
        (&[0xe8, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0], None),
        (&[0xe8, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0x3f], None),
        (&[0xf8], None),
    ] {
        assert_eq!(line(LineFormat::Locations, 9, entry, 0), found, "{entry:x?}");
    }
    assert_eq!(
        LineTable::new(LineFormat::Ranges, 1, &vec![0; MAX_TABLE + 1]),
        None
    );
}

const fn state(width: u32, is_compact: bool, is_ascii: bool) -> TextState {
    TextState(width << 2 | (is_compact as u32) << 5 | (is_ascii as u32) << 6)
}

const ASCII: TextState = state(1, true, true);
const LATIN: TextState = state(1, true, false);
const WIDE: TextState = state(2, true, false);
const WIDEST: TextState = state(4, true, false);

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

fn utf32(text: &str) -> Vec<u8> {
    text.chars()
        .flat_map(|character| u32::from(character).to_le_bytes())
        .collect()
}

/// Text of each width is decoded, as much of it as was copied.
#[test]
fn text_of_each_width() {
    let decoded = |state, length, bytes: &[u8], kept| decode_text(state, length, bytes, kept);
    let whole = |state, length, bytes: &[u8]| decoded(state, length, bytes, Kept::Start);
    assert_eq!(whole(ASCII, 5, b"outer").as_deref(), Some("outer"));
    assert_eq!(whole(LATIN, 4, b"caf\xe9").as_deref(), Some("café"));
    assert_eq!(whole(WIDE, 4, &utf16("a€bc")).as_deref(), Some("a€bc"));
    assert_eq!(whole(WIDEST, 3, &utf32("a🐍c")).as_deref(), Some("a🐍c"));
    // Bytes that were copied from behind the text are not part of it.
    assert_eq!(whole(ASCII, 3, b"outer").as_deref(), Some("out"));
    // Cut, at either end, also within a character.
    assert_eq!(
        decoded(ASCII, 9, b"outer", Kept::Start).as_deref(),
        Some("outer…")
    );
    assert_eq!(decoded(ASCII, 9, b"outer", Kept::End).as_deref(), Some("…outer"));
    assert_eq!(
        decoded(WIDE, 9, &utf16("a€b")[..5], Kept::Start).as_deref(),
        Some("a€…")
    );
    assert_eq!(
        decoded(WIDE, 9, &utf16("a€b")[1..], Kept::End).as_deref(),
        Some("…€b")
    );
    assert_eq!(
        decoded(ASCII, u64::MAX, b"outer", Kept::End).as_deref(),
        Some("…outer")
    );
    assert_eq!(
        decoded(WIDEST, u64::MAX, &utf32("a🐍"), Kept::Start).as_deref(),
        Some("a🐍…")
    );
    let long = vec![b'a'; 2 * MAX_TEXT];
    let shown = whole(ASCII, long.len() as u64, &long).expect("text");
    assert_eq!(shown.chars().count(), MAX_TEXT + 1);
}

/// Invalid characters, and those that act on a terminal, are replaced; a `str` whose text is elsewhere has
/// none.
#[test]
fn hostile_text() {
    let whole = |state, length, bytes: &[u8]| decode_text(state, length, bytes, Kept::Start);
    assert_eq!(whole(ASCII, 4, b"a\x1b[m").as_deref(), Some("a\u{fffd}[m"));
    assert_eq!(whole(LATIN, 3, b"a\x9bm").as_deref(), Some("a\u{fffd}m"));
    assert_eq!(whole(ASCII, 3, b"a\0\n").as_deref(), Some("a\u{fffd}\u{fffd}"));
    // The halves of a surrogate pair are two characters in Python.
    assert_eq!(whole(WIDE, 2, &utf16("🐍")).as_deref(), Some("\u{fffd}\u{fffd}"));
    assert_eq!(
        whole(WIDEST, 1, &u32::MAX.to_le_bytes()).as_deref(),
        Some("\u{fffd}")
    );
    for state in [
        state(1, false, true),
        state(0, true, false),
        state(3, true, false),
        state(2, true, true),
        TextState(0),
        TextState(u32::MAX),
    ] {
        assert_eq!(whole(state, 4, b"text"), None, "{state:?}");
    }
    assert_eq!(whole(ASCII, 0, b"text"), None);
    assert_eq!(whole(ASCII, 4, b""), None);
    assert_eq!(whole(WIDEST, 4, b"abc"), None);
}

/// A frame has its function's name, its file, and a line only where a table says it.
#[test]
fn frames_of_code() {
    let table = LineTable::new(LineFormat::Ranges, 9, &[4, 1, 2, 0x80]);
    let code = PythonCode {
        name: Some("Outer.inner".into()),
        file: Some("/srv/app.py".into()),
        lines: table,
    };
    let shown = code.symbolized(code.line(Some(2)));
    let symbol = shown.symbol.expect("a name");
    assert_eq!((&*symbol.name, symbol.offset), ("Outer.inner", None));
    assert_eq!(
        (shown.file.as_deref(), shown.line),
        (Some("/srv/app.py"), Some(10))
    );
    for at in [None, Some(4), Some(6), Some(u32::MAX)] {
        assert_eq!(code.line(at), None, "{at:?}");
    }
    let without = PythonCode { lines: None, ..code };
    assert_eq!(without.line(Some(2)), None);
    assert_eq!(PythonCode::default().symbolized(None), Symbolized::default());
}

/// The word of a frame leads to its instruction, as a number of bytes or of pairs of bytes, or as a pointer;
/// to none before the first.
#[test]
fn instructions_of_frames() {
    use unwind_tables::addr::Avma;
    let code = Avma::new(0x7f00_0000_1000);
    let found = |minor, word| {
        let known = LAYOUTS.iter().find(|layout| layout.minor == minor);
        known.expect("a known version").instruction(code, word)
    };
    assert_eq!(found(9, 6), Some(6));
    assert_eq!(
        found(9, 0xdead_beef_0000_0006),
        Some(6),
        "what follows the number is another field"
    );
    assert_eq!(found(10, 6), Some(12));
    for minor in [9, 10] {
        assert_eq!(found(minor, 0xffff_ffff), None, "it has not begun");
    }
    for (minor, bytecode) in [(11, 184), (12, 192)] {
        let first = code.get() + bytecode;
        assert_eq!(found(minor, first + 6), Some(6));
        for word in [0, first - 2, first + (1 << 32), u64::MAX] {
            assert_eq!(found(minor, word), None, "{word:#x}");
        }
    }
}
