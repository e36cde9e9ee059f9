//! Code without CFI between functions that keep frame pointers: where it leaves the frame pointer of its
//! caller alone, a step by the frame pointer skips that caller, so that the frame behind is marked, and the
//! stack is not complete. Stacks that are called complete are.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::objects::{check_accounts, is_part, watch, watch_both};
use memleak_test::program::{compile, directory, run_tool, source};
use memleak_test::report::{Frame, Report, Stack};
use memleak_test::witness::Accounts;

const WITH_FRAME_POINTERS: [&str; 2] = ["-O2", "-fno-omit-frame-pointer"];
const UNCERTAIN: &str = "fp_uncertain";

/// Checks that found frames are of the true stack, in its order, and that complete stacks have all of them.
#[track_caller]
fn check_no_gap_is_hidden(accounts: &Accounts) {
    for call in accounts.reported.keys() {
        let mut truths = accounts.witnessed.keys();
        let is_true =
            truths.any(|truth| is_part(call, truth) && (!call.complete || call.frames == truth.frames));
        assert!(is_true, "{call:x?}\n{}", accounts.report);
    }
    for stack in &accounts.report.stacks {
        let is_marked = stack.frames.iter().any(|frame| frame.found_by == UNCERTAIN);
        assert_eq!(is_marked, stack.end == "callers_uncertain", "{stack}");
    }
}

#[track_caller]
fn check_end(stack: &Stack, expected: &str) {
    assert_eq!(stack.end, expected, "{stack}");
}

/// Compiles a program with CFI and one without from the same code, and returns their paths.
fn with_and_without(directory: &Path, compile_at: impl Fn(&Path, bool) -> PathBuf) -> [PathBuf; 2] {
    [("with", true), ("without", false)].map(|(name, has_cfi)| {
        let directory = directory.join(name);
        std::fs::create_dir(&directory).expect("a new directory");
        compile_at(&directory, has_cfi)
    })
}

/// Assembly that leaves the frame pointer alone, once, twice, and called by a jump; and assembly that keeps
/// its own.
#[test]
fn assembly() {
    let directory = directory("torture-left-alone");
    let [whole, changed] = with_and_without(&directory, |directory, has_cfi| {
        let flags = match has_cfi {
            true => &[][..],
            false => &["-DNO_CFI"],
        };
        compile(
            directory,
            "torture/left_alone.c",
            &[&WITH_FRAME_POINTERS[..], flags].concat(),
        )
    });
    let accounts = watch_both(&directory, &whole, &changed);
    check_no_gap_is_hidden(&accounts);
    let mut of_thunk = 0;
    for stack in accounts.report.through("leak") {
        let is_of_thunk = stack.frames.iter().any(|frame| frame.name() == "thunk");
        of_thunk += usize::from(is_of_thunk);
        check_end(
            stack,
            if is_of_thunk {
                "callers_uncertain"
            } else {
                "complete"
            },
        );
    }
    assert_eq!(of_thunk, 4, "{}", accounts.report);
}

/// Functions of Rust without unwind tables.
#[test]
fn rust_without_tables() {
    let directory = directory("torture-without-tables");
    let [whole, changed] = with_and_without(&directory, |directory, has_cfi| {
        let library = directory.join("libwithout_tables.a");
        let tables = format!("-Cforce-unwind-tables={}", if has_cfi { "yes" } else { "no" });
        let mut rustc = Command::new("rustc");
        rustc
            .args([
                "--edition=2021",
                "--crate-type=staticlib",
                "-Copt-level=2",
                "-Cpanic=abort",
            ])
            .arg(tables)
            .arg("-o")
            .arg(&library)
            .arg(source("torture/without_tables.rs"));
        run_tool(&mut rustc);
        let library = library.to_str().expect("UTF-8");
        compile(
            directory,
            "torture/without_tables.c",
            &[&WITH_FRAME_POINTERS[..], &[library]].concat(),
        )
    });
    let accounts = watch_both(&directory, &whole, &changed);
    check_no_gap_is_hidden(&accounts);
    let stack = accounts.report.stacks.iter().find(|stack| {
        stack
            .frames
            .iter()
            .any(|frame| frame.name().contains("innermost"))
    });
    let stack = stack.unwrap_or_else(|| panic!("{}", accounts.report));
    assert_ne!(stack.end, "complete", "{stack}");
}

fn report_of(test: &str, source: &str) -> Report {
    let directory = directory(test);
    let path = compile(&directory, source, &WITH_FRAME_POINTERS);
    watch(&directory, &path).report
}

/// Generated code that leaves the frame pointer alone, and code that has its own.
#[test]
fn generated_code() {
    let report = report_of("torture-generated-alone", "torture/generated_leaves_alone.c");
    let mut ends = [0, 0];
    for stack in report.through("leak") {
        let names = stack.names();
        let is_kept = names.contains(&"kept_own");
        check_end(stack, if is_kept { "complete" } else { "callers_uncertain" });
        ends[usize::from(is_kept)] += 1;
        let marked = stack.frames.iter().find(|frame| frame.found_by == UNCERTAIN);
        assert_eq!(marked.map(Frame::name), (!is_kept).then_some("main"), "{stack}");
    }
    assert_eq!(ends, [1, 1], "{report}");
}

/// Calls on another stack, which lies higher than the caller's, or lower, and from there on another one
/// again.
#[test]
fn stacks_that_lie_higher() {
    let directory = directory("torture-higher-stack");
    let path = compile(
        &directory,
        "torture/higher_stack.c",
        &["-O2", "-fomit-frame-pointer", "-pthread"],
    );
    check_accounts(watch(&directory, &path), 6);
}
