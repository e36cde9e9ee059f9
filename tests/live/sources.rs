//! Lines of source in reports are those of the file that debug information names, and only of files that the
//! caller may read.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use memleak_test::program::{compile_as, directory, require_root, source};

const SOURCE: &str = "amounts/snapshots.c";

/// Records a program whose debug information says that its source is at `named`.
#[track_caller]
fn record(name: &str, named: &Path) -> PathBuf {
    require_root();
    let directory = directory(&format!("sources-{name}"));
    let map = format!(
        "-ffile-prefix-map={}={}",
        source(SOURCE).display(),
        named.display()
    );
    let flags = ["-O2", "-g", "-fno-optimize-sibling-calls", "-pthread", &map];
    let program = compile_as(&directory.join("snapshots"), SOURCE, &flags);
    let recording = directory.join("a.memleak");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command
        .args(["-q", "-o", "0", "-f", "--record"])
        .arg(&recording)
        .arg("--")
        .arg(program)
        .args(["100", "1"]);
    command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    let mut memleak = command.spawn().expect("memleak was built");
    // The program waits for a line at each of its steps.
    let mut input = memleak.stdin.take().expect("a pipe");
    input.write_all(b"\n\n\n\n").expect("it reads");
    drop(input);
    let output = memleak.wait_with_output().expect("it ends");
    assert!(recording.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    recording
}

/// Returns the last report of a recording, as the user who called sudo gets it, or root without one.
#[track_caller]
fn report(recording: &Path, sudo: Option<&str>, flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command
        .arg("report")
        .arg(recording)
        .args(flags)
        .env_remove("SUDO_UID");
    command.envs(sudo.map(|user| ("SUDO_UID", user)));
    let output = command.output().expect("memleak was built");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns true if a report has these words; its long lines are wrapped.
fn has_words(report: &str, words: &str) -> bool {
    let all: Vec<_> = report.split_whitespace().collect();
    all.join(" ").contains(words)
}

/// Line of the responsible function of the stack with most blocks, from JSON.
#[track_caller]
fn responsible_line(recording: &Path) -> usize {
    let report: Value = serde_json::from_str(&report(recording, None, &["--format", "json"])).expect("JSON");
    let stacks = report["stacks"].as_array().expect("a list").iter();
    let most = stacks
        .max_by_key(|stack| stack["outstanding"]["blocks"].as_u64())
        .expect("a stack");
    let at = usize::try_from(most["responsible"]["frame"].as_u64().expect("a number")).expect("small");
    let line = most["frames"][at]["line"].as_u64().expect("a line");
    usize::try_from(line).expect("small")
}

/// Three lines around each line are those of the file, under the responsible frame; the caller of sudo sees
/// those that it may read, and what is not shown is said.
#[test]
fn lines_that_the_caller_may_read() {
    let place = tempfile::tempdir().expect("a directory");
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).expect("ours");
    let copy = place.path().join("snapshots.c");
    fs::copy(source(SOURCE), &copy).expect("a copy");
    fs::set_permissions(&copy, Permissions::from_mode(0o644)).expect("ours");
    let recording = record("readable", &copy);
    let line = responsible_line(&recording);
    let text = fs::read_to_string(&copy).expect("text");
    let expected: Vec<(usize, &str)> = (1_usize..)
        .zip(text.lines())
        .filter(|(number, _)| number.abs_diff(line) <= 3)
        .collect();
    assert_eq!(expected.len(), 7);
    for sudo in [None, Some("1")] {
        let shown = report(&recording, sudo, &["--source-lines"]);
        for (number, text) in &expected {
            let mark = if *number == line { ">" } else { " " };
            let row = format!("{number:>6} {mark} {}", text.replace('\t', "    "));
            assert!(
                shown.lines().any(|shown| shown.trim() == row.trim()),
                "{row:?} in {shown}"
            );
        }
        assert!(!shown.contains("newer than the code"), "{shown}");
    }
    assert!(
        !report(&recording, None, &[]).contains(expected[3].1.trim()),
        "without the flag"
    );
    // Written to after the program was compiled: the lines may be others.
    fs::write(&copy, &text).expect("ours");
    assert!(report(&recording, None, &["--source-lines"]).contains("(the file is newer than the code)"));
    fs::set_permissions(&copy, Permissions::from_mode(0o600)).expect("ours");
    let refused = report(&recording, Some("1"), &["--source-lines"]);
    assert!(
        has_words(&refused, "lines of 0 places are shown") && has_words(&refused, "that you may not read"),
        "{refused}"
    );
    assert!(!refused.contains(expected[3].1.trim()), "{refused}");
}

/// Files that are no sources, and that debug information names or leads to by links, are not shown, not even
/// to root.
#[test]
fn names_of_other_files() {
    let shadow = record("shadow", Path::new("/etc/shadow"));
    let shown = report(&shadow, None, &["--source-lines"]);
    assert!(
        has_words(&shown, "without an absolute path or a source file's extension")
            && !shown.contains("root:"),
        "{shown}"
    );
    let place = tempfile::tempdir().expect("a directory");
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).expect("ours");
    let [secret, link] = ["secret", "link.c"].map(|name| place.path().join(name));
    fs::write(&secret, "hunter2\n".repeat(200)).expect("ours");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("ours");
    symlink(&secret, &link).expect("ours");
    let recording = record("link", &link);
    assert!(
        report(&recording, None, &["--source-lines"]).contains("hunter2"),
        "root may read it"
    );
    for sudo in ["1", "65534"] {
        let shown = report(&recording, Some(sudo), &["--source-lines", "--format", "html"]);
        assert!(!shown.contains("hunter2"), "{sudo}");
        let shown = report(&recording, Some(sudo), &["--source-lines"]);
        assert!(
            has_words(&shown, "that you may not read") && !shown.contains("hunter2"),
            "{shown}"
        );
    }
}
