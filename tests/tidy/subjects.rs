//! Subjects of commits are `area: imperative`, of one area, and short enough for a list.

use std::process::Command;

use super::{assert_none, root};

/// The last commit before the rule.
const SINCE: &str = "6bf331b7";
/// Maximum number of characters.
const MAX_CHARACTERS: usize = 72;

/// Returns the rule that a subject breaks.
fn fault(subject: &str) -> Option<&'static str> {
    let is_area = |area: &str| {
        let mut characters = area.chars();
        characters.all(|character| character.is_ascii_lowercase() || "0123456789-".contains(character))
    };
    let Some((area, change)) = subject.split_once(": ").filter(|(area, _)| is_area(area)) else {
        return Some("does not begin with one area and a colon");
    };
    let verb = change.split(' ').next().unwrap_or_default();
    // Neither `bring` nor `proceed` nor `embed`.
    let is_past = verb.ends_with("ed") && !verb.ends_with("eed") && verb != "embed";
    let is_told = is_past || verb.ends_with("ing") && verb.len() > 5;
    if area.is_empty() || change.is_empty() {
        Some("has an empty part")
    } else if subject.chars().count() > MAX_CHARACTERS {
        Some("is longer than 72 characters")
    } else if is_told || !verb.starts_with(|first: char| first.is_lowercase()) || change.ends_with('.') {
        Some("is not an imperative: `add`, not `Add`, `added` or `adding`, and no period")
    } else {
        None
    }
}

/// Commits since the rule follow it. A tree without its history has none.
#[test]
fn subjects_say_where_and_what() {
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%s", &format!("{SINCE}..HEAD")])
        .current_dir(root())
        .output();
    let subjects = log.map(|log| String::from_utf8_lossy(&log.stdout).into_owned());
    let faults: Vec<String> = subjects
        .unwrap_or_default()
        .lines()
        .filter_map(|subject| Some(format!("`{subject}` {}", fault(subject)?)))
        .collect();
    assert_none(&faults, "subjects of commits");
}

/// The rule tells subjects apart.
#[test]
fn subject_reader() {
    for right in [
        "bpf: keep a comment within its width",
        "unwind-tables: make tests one program",
        "bpf: proceed with a comment",
    ] {
        assert_eq!(fault(right), None, "{right}");
    }
    for wrong in [
        "bpf, report: read words in one place",
        "Keep a comment",
        "bpf: Keep a comment",
        "bpf: keep a comment.",
        "bpf: keeping a comment",
        "bpf: added a comment",
        ": keep a comment",
        "bpf: ",
        "bpf: keep a comment that is so long that no list of commits can show all of it",
    ] {
        assert!(fault(wrong).is_some(), "{wrong}");
    }
}
