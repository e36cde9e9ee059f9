//! Runtimes of other languages are recognized by their files, and doctor says what to switch on so that their
//! functions have names.

use std::path::Path;
use std::process::Command;

use super::{examine, findings};
use memleak_test::program::{Program, directory, run_tool, source, stock};

/// Starts a program that says "ready" and then waits; checks what is found about its runtime.
#[track_caller]
fn check(command: &mut Command, level: &str, about: &str, remedy: Option<&str>) {
    let program = Program::spawn(command);
    program.expect("ready");
    let diagnosis = examine(&program);
    // node's perf map, which would be taken for that of the next process with this pid.
    let _ = std::fs::remove_file(format!("/tmp/perf-{}.map", program.pid()));
    let found = findings(&diagnosis["process"]["findings"], "runtime");
    let [(found_level, text, found_remedy)] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((found_level, text), (level, about));
    match remedy {
        None => assert_eq!(found_remedy, None),
        Some(part) => {
            let part = part.replace("PID", &program.pid().to_string());
            assert!(
                found_remedy.is_some_and(|remedy| remedy.contains(&part)),
                "{found_remedy:?}"
            );
        }
    }
}

/// Without `--perf-basic-prof`, functions of JavaScript have no names.
#[test]
fn node() {
    let node = stock("/usr/bin/node", "nodejs");
    // node writes a log where it runs.
    let directory = directory("doctor-node");
    let start = |flags: &[&str]| {
        let mut command = Command::new(&node);
        command
            .current_dir(&directory)
            .args(flags)
            .args(["-e", "console.log('ready'); setTimeout(() => {}, 1e8)"]);
        command
    };
    let nameless = "Node.js: stacks can be unwound through its code; its functions have no names";
    check(&mut start(&[]), "note", nameless, Some("--perf-basic-prof"));
    let named = "Node.js: stacks can be unwound through its code; its functions have names";
    check(&mut start(&["--perf-basic-prof"]), "ok", named, None);
}

/// Functions of a known Python have names without any switch. For an unknown one, doctor gives the reason why
/// they have none, and what helps.
#[test]
fn python() {
    let python = stock("/usr/bin/python3", "python3");
    let directory = directory("doctor-python");
    let other = directory.join("python3.16");
    run_tool(
        Command::new(&python)
            .arg(source("python/claim_version.py"))
            .arg(&other),
    );
    let start = |program: &Path, flags: &[&str]| {
        let mut command = Command::new(program);
        // The other interpreter is not beside its library.
        command.env("PYTHONHOME", "/usr").args(flags).args([
            "-c",
            "import sys; print('ready', flush=True); sys.stdin.readline()",
        ]);
        command
    };
    let real = python.canonicalize().expect("it is there");
    let known = format!(
        "Python 3.{}: stacks can be unwound through its code; its functions have names",
        minor_version(&real)
    );
    check(&mut start(&python, &[]), "ok", &known, None);
    let nameless = "Python 3.16: stacks can be unwound through its code; its functions have no names: \
                    CPython 3.16.0 is not supported: this memleak reads frames of 3.9 to 3.15";
    check(&mut start(&other, &[]), "note", nameless, Some("-X perf"));
    let named = "Python 3.16: stacks can be unwound through its code; its functions have names";
    check(&mut start(&other, &["-X", "perf"]), "ok", named, None);
}

/// N of `python3.N`.
fn minor_version(python: &Path) -> u32 {
    let name = python.file_name().expect("a file").to_string_lossy();
    let version = name.strip_prefix("python3.").expect("a version");
    version.parse().expect("a number")
}

/// Compiled code of Java needs a flag, and a command for names.
#[test]
fn java() {
    let java = stock("/usr/bin/java", "default-jdk-headless");
    let source = source("runtimes/Waiting.java");
    let start = |flags: &[&str]| {
        let mut command = Command::new(&java);
        command.args(flags).arg(&source);
        command
    };
    let nameless = "Java: stacks may end in its compiled code; its functions have no names";
    check(
        &mut start(&[]),
        "note",
        nameless,
        Some("`jcmd PID Compiler.perfmap`"),
    );
    let with_frames = "Java: stacks can be unwound through its code; its functions have no names";
    check(
        &mut start(&["-XX:+PreserveFramePointer"]),
        "note",
        with_frames,
        Some("`jcmd PID Compiler.perfmap`"),
    );
}
