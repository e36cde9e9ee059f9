//! The acceptance test of bcc's `memleak.py`, held against this one: the program under test is started with `-c` and
//! allocates 30000 bytes after the first report; of all that is written, the last line with "byte" must begin with
//! exactly that number. Needs root.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::program::{compile, directory, require_root};

const KINDS: [&str; 8] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "valloc",
    "memalign",
    "pvalloc",
    "aligned_alloc",
];

/// The number that the last line with "byte" begins with, as bcc's test finds it.
fn leaked(program: &Path, kind: &str, stay: &str) -> String {
    let command = format!("{} {kind} 30000 {stay}", program.display());
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["-c", &command, "-T", "1", "1", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("memleak was built");
    let mut input = memleak.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(memleak.stdout.take().expect("a pipe"))
        .lines()
        .map(|line| line.expect("UTF-8"));
    let first = lines.find(|line| line.contains("with outstanding allocations"));
    assert!(first.is_some(), "{kind}: no report");
    input.write_all(b"\n").expect("the program reads our pipe");
    // The second report is the last one; a program that stays has our pipes until we close one.
    let status = memleak.wait().expect("a child of ours");
    assert!(status.success(), "{kind}: {status}");
    drop(input);
    let last = lines.filter(|line| line.contains("byte")).last();
    let last = last.unwrap_or_else(|| panic!("{kind}: no line with the word"));
    last.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Each function's block is reported with exactly the size that was asked for, whether the program stays or has
/// exited by the second report.
#[test]
fn exactly_30000() {
    require_root();
    let program = compile(&directory("acceptance"), "acceptance.c", &["-O2"]);
    for stay in ["stays", "exits"] {
        for kind in KINDS {
            assert_eq!(leaked(&program, kind, stay), "30000", "{kind}, {stay}");
        }
    }
}
