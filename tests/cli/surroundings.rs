//! Closed standard output and low limits are refused by one clear line; where the locale is not UTF-8, output
//! is ASCII.

use std::process::{Command, Output};

use super::command_line::check_refused;
use memleak_test::program::{Program, compile, directory};

/// Runs a line of the shell in which `$M` is memleak.
fn shell(line: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("M", env!("CARGO_BIN_EXE_memleak"));
    command.output().expect("a shell")
}

fn target(name: &str) -> Program {
    let program = Program::start(&compile(&directory(name), "amounts/plain.c", &["-O2"]), &[]);
    program.expect("ready");
    program
}

/// With standard output closed, output to it is refused; output to files is written.
#[test]
fn closed_standard_output_as_root() {
    let target = target("surroundings-closed");
    let trace = format!("\"$M\" -qq -p {} 1 1", target.pid());
    for line in [
        "\"$M\" --help",
        "\"$M\" doctor",
        "\"$M\" top 1 1",
        "\"$M\" man",
        &trace,
    ] {
        check_refused(
            &shell(&format!("{line} >&-")),
            &["standard output is closed", "> FILE"],
        );
    }
    let directory = directory("surroundings-closed-file");
    let page = directory.join("page.html");
    let output = shell(&format!("{trace} --output '{}' >&-", page.display()));
    assert!(output.status.success() && page.exists(), "{output:?}");
}

/// The refusal names limits on open files, on their size and on memory; a file that grew too large is
/// removed.
#[test]
fn limits_as_root() {
    let target = target("surroundings-limits");
    let trace = format!("exec \"$M\" -qq -p {} 1 1", target.pid());
    for files in [20, 60] {
        let output = shell(&format!("ulimit -n {files}; {trace}"));
        check_refused(
            &output,
            &["open files", &format!("may have {files} files"), "ulimit -n"],
        );
    }
    let output = shell(&format!("ulimit -v 200000; {trace}"));
    check_refused(&output, &["not enough memory", "may map 195 MiB", "ulimit -v"]);
    let doctor = shell("ulimit -n 20; exec \"$M\" doctor");
    let findings = String::from_utf8_lossy(&doctor.stdout);
    assert_eq!(doctor.status.code(), Some(2), "{findings}");
    assert!(findings.contains("ulimit -n"), "{findings}");
    let page = directory("surroundings-limits-file").join("page.html");
    let output = shell(&format!("ulimit -f 8; {trace} --output '{}'", page.display()));
    check_refused(&output, &["File too large", "ulimit -f"]);
    assert!(!page.exists());
}

/// A program that memleak starts ignores SIGXFSZ if memleak was started with it ignored, and only then.
#[test]
fn signal_of_a_file_too_large_as_root() {
    for (before, ignored) in [("", 0), ("trap '' XFSZ;", 1)] {
        let output = shell(&format!(
            "{before} exec \"$M\" -qq -c 'grep SigIgn /proc/self/status' 1"
        ));
        let text = String::from_utf8(output.stdout).expect("text");
        let mask = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("SigIgn:\t"));
        let mask = u64::from_str_radix(mask.expect(&text), 16).expect("a mask");
        // Bit N - 1 is signal N; SIGXFSZ is 25.
        assert_eq!(mask >> 24 & 1, ignored, "{before} {mask:#x}");
    }
}

/// Where the locale is not UTF-8, memleak's own text is ASCII; where none is named, it is UTF-8.
#[test]
fn locales() {
    let help = |locale: &str| shell(&format!("unset LC_ALL LC_CTYPE LANG; {locale} \"$M\" --help")).stdout;
    for (locale, is_ascii) in [
        ("LANG=C", true),
        ("LC_ALL=POSIX LANG=C.UTF-8", true),
        ("LANG=de_DE.ISO-8859-15", true),
        ("LANG=C.UTF-8", false),
        ("", false),
    ] {
        let text = help(locale);
        assert!(!text.is_empty());
        assert_eq!(
            text.is_ascii(),
            is_ascii,
            "{locale}: {}",
            String::from_utf8_lossy(&text)
        );
    }
}
