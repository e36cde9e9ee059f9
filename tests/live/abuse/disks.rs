//! Full disks, from the beginning or in the middle of a trace, cost what was to be written there and no more.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::RELEASE;
use memleak_test::machine::{Feature, lacks};
use memleak_test::program::{Program, compile, directory, require_root};
use memleak_test::report::Report;

const MEMLEAK: &str = env!("CARGO_BIN_EXE_memleak");

/// Runs memleak in a new directory on a disk of `bytes` bytes, of which some are taken. Afterwards prints the
/// files there, and runs the shell commands `then` to show their contents.
fn on_disk(place: &Path, [bytes, taken]: [u32; 2], arguments: &[&str], then: &str) -> Output {
    require_root();
    const SCRIPT: &str = r#"
        mount -t tmpfs -o "size=$1" disk "$2"
        cd "$2"
        head -c "$3" /dev/zero >other
        then=$4
        shift 4
        status=0
        "$@" || status=$?
        rm other
        echo "there: $(ls -A | tr '\n' ' ')"
        eval "$then"
        exit "$status""#;
    Command::new("unshare")
        .args(["--mount", "sh", "-euc", SCRIPT, "sh"])
        .arg(bytes.to_string())
        .arg(place)
        .args([&taken.to_string(), then, MEMLEAK])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("unshare (apt-get install util-linux)")
}

/// Checks that one line says that there was no room, where, and what to do.
#[track_caller]
fn check_no_space(output: &Output, status: i32, place: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    let wanted = format!(
        "cannot write {place}: No space left on device (os error 28): free some space there, or choose \
         another file"
    );
    let lines = text.lines().filter(|line| line.contains("No space left"));
    let (warnings, errors): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains("warning: "));
    assert_eq!(errors, [format!("memleak: {wanted}")], "{text}");
    assert!(
        warnings.len() <= 1 && warnings.iter().all(|line| line.contains(&wanted)),
        "{text}"
    );
    assert!(!text.contains("panicked"), "{text}");
}

fn listing(output: &Output) -> (String, Vec<String>) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().map(str::to_owned);
    let files = lines
        .find(|line| line.starts_with("there: "))
        .expect("it is told");
    (files["there: ".len()..].trim().to_owned(), lines.collect())
}

/// A full disk ends a trace whose output is on it, with everything that was written before whole; a trace
/// whose recording is on it goes on without it. Documents that are made at the end are there whole or not at
/// all.
#[test]
fn disks_are_full() {
    if lacks(Feature::Namespaces) {
        return;
    }
    let directory = directory("abuse-disk");
    let path = compile(&directory, "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["1000"]);
    program.expect("ready");
    program.step("done");
    let pid = program.pid().to_string();
    let traced = |more: &[&'static str]| {
        let mut arguments = vec!["-q", "-p", &pid];
        arguments.extend(more);
        arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect::<Vec<_>>()
    };
    let run = |disk, more: &[&'static str], then: &str| {
        let arguments = traced(more);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        on_disk(&directory, disk, &arguments, then)
    };

    let output = run([16384, 1], &["--output", "leaks.json", "0.05"], "cat leaks.json");
    check_no_space(&output, 2, "`leaks.json`");
    let (files, lines) = listing(&output);
    assert_eq!(files, "leaks.json");
    assert!(!lines.is_empty(), "{output:?}");
    lines.iter().for_each(|line| Report::parse(line).check_sums());

    let list = format!("{MEMLEAK} report --all --format json trace.mlr");
    let output = run(
        [8192, 1],
        &["--record", "trace.mlr", "--format", "json", "0.02", "150"],
        &list,
    );
    check_no_space(&output, 2, "`trace.mlr`");
    let (files, lines) = listing(&output);
    assert_eq!(files, "trace.mlr");
    assert!((1..150).contains(&lines.len()), "{} reports", lines.len());
    lines.iter().for_each(|line| Report::parse(line).check_sums());

    for (name, arguments) in [
        ("page.html", &["--output", "page.html", "0.05", "2"][..]),
        (
            "leaks.svg",
            &["--output", "leaks.svg", "--format", "svg", "0.05", "1"],
        ),
        (
            "gate.xml",
            &[
                "--format",
                "json",
                "--fail-on",
                "outstanding>1GiB",
                "--junit",
                "gate.xml",
                "0.05",
                "1",
            ],
        ),
        (
            "known.json",
            &["--format", "json", "--write-baseline", "known.json", "0.05", "1"],
        ),
    ] {
        let output = run([4096, 4096], arguments, "");
        check_no_space(&output, 2, &format!("`{name}`"));
        assert_eq!(listing(&output).0, "", "{name}: nothing is left");
    }
}

/// Standard output on a full device: one line, and a status that says so.
#[test]
fn standard_output_is_full() {
    let path = compile(&directory("abuse-full"), "amounts/plain.c", &RELEASE);
    let program = Program::start(&path, &["1"]);
    program.expect("ready");
    let pid = program.pid().to_string();
    for format in ["text", "json", "pprof", "html"] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("a device");
        let output = Command::new(MEMLEAK)
            .args(["-p", &pid, "--format", format, "0.05", "2"])
            .stdout(full)
            .stdin(Stdio::null())
            .output()
            .expect("memleak was built");
        check_no_space(&output, 2, "to standard output");
    }
}
