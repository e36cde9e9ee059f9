//! Comments are read by people who see them for the first time: their form and their words.

use super::{Source, assert_none, root, sources};

/// Maximum columns of a line of a comment in C, which has no formatter here. A tab is up to eight.
const MAX_C_COLUMNS: usize = 120;

/// Directories of Rust and of C whose comments are checked.
const RUST: [&str; 5] = ["src", "crates", "unwind-tables", "tests", "benches"];
const C: [&str; 3] = ["bpf", "tests", "benches"];

/// A line of a comment, and where it is.
struct Line<'a> {
    place: String,
    /// The line as it is in the file.
    whole: &'a str,
    /// Text without the marks of a comment.
    text: &'a str,
    /// True if the line before belongs to the same comment.
    continues: bool,
}

/// Lines that are comments by one of `marks`, which a line begins with. Programs that tests trace are left
/// out: tests know their lines by number.
fn comments<'a>(files: &'a [Source], marks: &'static [&'static str]) -> impl Iterator<Item = Line<'a>> {
    let files = files
        .iter()
        .filter(|file| !file.path.starts_with("tests/programs"));
    files.flat_map(move |file| {
        let mut continues = false;
        (1..).zip(file.text.lines()).filter_map(move |(number, whole)| {
            let line = whole.trim_start();
            let text = marks.iter().find_map(|mark| line.strip_prefix(*mark));
            let before = continues;
            continues = text.is_some_and(|text| !text.ends_with("*/"));
            Some(Line {
                place: format!("{}:{number}", file.display()),
                whole,
                text: text?,
                continues: before,
            })
        })
    })
}

fn rust() -> Vec<Source> {
    RUST.iter()
        .flat_map(|directory| sources(directory, &["rs"]))
        .collect()
}

fn c() -> Vec<Source> {
    C.iter()
        .flat_map(|directory| sources(directory, &["c", "h"]))
        .collect()
}

/// Columns of a line, with tabs to each eighth.
fn columns(line: &str) -> usize {
    line.chars().fold(0, |column, letter| match letter {
        '\t' => (column / 8 + 1) * 8,
        _ => column + 1,
    })
}

/// Comments are within the width to which the formatter keeps code.
#[test]
fn comments_fit_the_formatter() {
    let settings = std::fs::read_to_string(root().join("rustfmt.toml")).expect("the formatter's settings");
    let width = settings
        .lines()
        .find_map(|line| line.strip_prefix("max_width = "));
    let width: usize = width.and_then(|width| width.parse().ok()).expect("a width");
    let (rust, c) = (rust(), c());
    let wide = |lines: Vec<Line<'_>>, most: usize| {
        let wide = lines.into_iter().filter(move |line| columns(line.whole) > most);
        wide.map(|line| line.place).collect::<Vec<_>>()
    };
    let mut offences = wide(comments(&rust, &["//"]).collect(), width);
    offences.extend(wide(comments(&c, &["/*", "*", "//"]).collect(), MAX_C_COLUMNS));
    assert_none(&offences, "comments wider than the formatter's lines");
}

/// A doc comment stands alone, and so does a comment in C: it names a thing or an action, and neither asks
/// nor continues its neighbour.
#[test]
fn comments_stand_alone() {
    const STARTS: [&str; 8] = [
        "What ",
        "Whether ",
        "Who ",
        "Whose ",
        "Of ",
        "That of ",
        "Those of ",
        "The same",
    ];
    let (rust, c) = (rust(), c());
    let all = comments(&rust, &["/// ", "//! "]).chain(comments(&c, &["/* ", "* ", "// "]));
    let leans = |line: &Line<'_>| !line.continues && STARTS.iter().any(|start| line.text.starts_with(start));
    let offences: Vec<_> = all
        .filter(leans)
        .map(|line| format!("{}: {}", line.place, line.whole.trim_start()))
        .collect();
    assert_none(
        &offences,
        "comments that begin as questions, or lean on their neighbour",
    );
}

/// Words that make a sentence a riddle are in no comment: a plain one says who does what.
#[test]
fn comments_are_plain() {
    const RIDDLES: [&str; 5] = ["nobody", "any more", "is told of", "was told of", "are told of"];
    /// The user, and a comparison.
    const OTHERS: [&str; 4] = ["user nobody", "as nobody", "`nobody`", "many more"];
    let (rust, c) = (rust(), c());
    let all = comments(&rust, &["//"]).chain(comments(&c, &["/*", "*", "//"]));
    let is_riddle = |line: &Line<'_>| {
        let text = OTHERS
            .iter()
            .fold(line.text.to_lowercase(), |text, other| text.replace(other, ""));
        RIDDLES.iter().any(|riddle| text.contains(riddle))
    };
    let offences: Vec<_> = all
        .filter(is_riddle)
        .map(|line| format!("{}: {}", line.place, line.text))
        .collect();
    assert_none(&offences, "comments whose words are riddles");
}
