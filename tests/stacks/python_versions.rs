//! Functions of versions of CPython that this release does not have: Debian's next release has them, with the
//! C library that they need (`tests/setup.sh`). A build without a lock, which no release has, is a program
//! with the same structures.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::python::{check_chains, functions, trace_by, trace_program};
use memleak_test::program::{
    LIBRARIES_OF_NEXT, NEXT_RELEASE, compile, compile_as, directory, of_next_release,
};
use memleak_test::report::{Amount, Report};

/// Makes a command for a program of that release, or one that needs its C library, with that release's Python
/// modules.
#[track_caller]
fn with_modules(program: &Path) -> Command {
    let mut command = of_next_release(program);
    command.env("PYTHONHOME", NEXT_RELEASE);
    command
}

#[track_caller]
fn interpreter(version: &str) -> Command {
    with_modules(&Path::new(NEXT_RELEASE).join(format!("bin/python{version}")))
}

/// Python 3.14 has references with tags, and interpreter's code between functions.
#[test]
fn functions_are_those_that_python_3_14_sees() {
    check_chains("python-versions-3.14", &mut interpreter("3.14"));
}

/// Python 3.15 has its state in a thread-local variable, and a frame of no function that calls all others.
#[test]
fn functions_are_those_that_python_3_15_sees() {
    check_chains("python-versions-3.15", &mut interpreter("3.15"));
}

/// The thread-local variable of a library that is loaded later is found by the object's number.
#[test]
fn variables_of_threads_are_found_in_libraries() {
    let directory = directory("python-versions-library");
    let host = compile(&directory, "python/embedding.c", &["-O1", "-ldl"]);
    let library = Path::new(NEXT_RELEASE)
        .join(LIBRARIES_OF_NEXT)
        .join("libpython3.15.so.1.0");
    let report = trace_program(with_modules(&host).arg(library), &["--follow-fork"]);
    check_functions(&report, 5_000_033, &[("plug_in", 4), ("<module>", 5)]);
}

/// A block that an extension forgets, without the lock, has the extension's functions and those of Python
/// that called them.
#[test]
fn leaks_of_extensions_have_their_callers() {
    let directory = directory("python-versions-extension");
    let include = |name: &str| format!("-I{NEXT_RELEASE}/include{name}");
    let [own, machine] = [include("/python3.14"), include("")];
    let library = directory.join("extension.so");
    compile_as(
        &library,
        "python/extension.c",
        &["-g", "-O1", "-shared", "-fPIC", &own, &machine],
    );
    let report = trace_by(
        &mut interpreter("3.14"),
        "python/extension.py",
        &[&directory],
        &[],
    );
    let expected = [("Service.answer", 12), ("handle", 18), ("<module>", 23)];
    let expected = expected.map(|(name, line)| (name.to_owned(), "extension.py".to_owned(), line));
    // The interpreter has its own way for calls that it has made before.
    for stack in &report.stacks {
        let native: Vec<&str> = stack.frames.iter().take(2).map(|frame| frame.name()).collect();
        assert_eq!(native, ["forget_block", "keep"], "{stack}");
        assert_eq!(functions(stack), expected, "{stack}");
    }
    assert_eq!(
        report.outstanding(),
        Amount {
            bytes: 40 * 400_000,
            blocks: 40
        },
        "{report}"
    );
}

/// Without a lock, a thread runs a copy of the bytecode: its functions have the same lines. A list of copies
/// that is damaged ends the chain.
#[test]
fn functions_of_builds_without_a_lock() {
    let directory = directory("python-versions-free-threaded");
    let flags = ["-O1", "-rdynamic", "-pthread"];
    let program: PathBuf = compile(&directory, "python/free_threaded.c", &flags);
    let report = trace_program(&mut Command::new(program), &[]);
    let whole = [("inner", 11), ("outer", 20), ("again", 31)];
    check_functions(&report, 400_000, &whole);
    check_functions(&report, 400_001, &whole);
    check_functions(&report, 400_002, &whole[..1]);
    let python = report.unwinding.python;
    assert_eq!((python.whole, python.in_part), (2, 1), "{report}");
}

/// Checks the functions, with lines, of the stack that allocated `bytes` bytes.
#[track_caller]
fn check_functions(report: &Report, bytes: u64, expected: &[(&str, u32)]) {
    let of_bytes = report
        .stacks
        .iter()
        .filter(|stack| stack.allocated.bytes == bytes);
    let found: Vec<Vec<_>> = of_bytes
        .map(|stack| {
            functions(stack)
                .into_iter()
                .map(|(name, _, line)| (name, line))
                .collect()
        })
        .collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|&(name, line)| (name.to_owned(), line))
        .collect();
    assert_eq!(found, [expected], "{report}");
}
