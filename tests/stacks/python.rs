//! Functions of Python in stacks are those that Python itself sees: `chains.py` writes down what is running
//! at each of its allocations.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, source, stock};
use memleak_test::python::PythonStacks;
use memleak_test::report::{Amount, Report, Stack};
use memleak_test::started::Started;

/// Only blocks that the programs make on purpose are so large.
const LARGE: [&str; 2] = ["--min-size", "300000"];

/// A function, its file without directories, and the line.
pub(crate) type Function = (String, String, u32);

fn interpreter() -> PathBuf {
    stock("/usr/bin/python3", "python3")
}

/// Runs a program of `tests/programs`, traced from its "ready" to its "done".
#[track_caller]
fn trace(program: &str, arguments: &[&Path], flags: &[&str]) -> Report {
    trace_by(&mut Command::new(interpreter()), program, arguments, flags)
}

/// Traces like [`trace`], by a given interpreter with its arguments.
#[track_caller]
pub(crate) fn trace_by(command: &mut Command, program: &str, arguments: &[&Path], flags: &[&str]) -> Report {
    command.arg(source(program)).args(arguments);
    trace_program(command, flags)
}

/// Traces a program from its "ready" to its "done".
#[track_caller]
pub(crate) fn trace_program(command: &mut Command, flags: &[&str]) -> Report {
    let mut python = Program::spawn(command);
    python.expect("ready");
    let memleak = Memleak::attach(python.pid(), &[&LARGE[..], flags].concat());
    python.step("done");
    let report = memleak.finish();
    report.check_sums();
    assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
    report
}

/// Starts a command by memleak, and follows its children.
#[track_caller]
fn trace_started(command: &[&str]) -> Report {
    let arguments = [&LARGE[..], &["--follow-fork", "--"], command].concat();
    let mut outcome = Started::start(&arguments).finish();
    let report = outcome.reports.pop().expect("a report");
    report.check_sums();
    report
}

/// Functions of Python in a stack, from the innermost.
pub(crate) fn functions(stack: &Stack) -> Vec<Function> {
    let frames = stack.frames.iter().filter(|frame| frame.found_by == "python");
    frames
        .map(|frame| {
            let file = frame.file.as_deref().unwrap_or("?");
            let file = file.rsplit('/').next().unwrap_or(file);
            (frame.name().to_owned(), file.to_owned(), frame.line.unwrap_or(0))
        })
        .collect()
}

fn add(sums: &mut BTreeMap<Vec<Function>, Amount>, chain: Vec<Function>, amount: Amount) {
    let sum = sums.entry(chain).or_default();
    *sum = [*sum, amount].into_iter().sum();
}

/// Sums of allocations by chain of functions.
fn by_functions(report: &Report) -> BTreeMap<Vec<Function>, Amount> {
    let mut sums = BTreeMap::new();
    for stack in &report.stacks {
        add(&mut sums, functions(stack), stack.allocated);
    }
    sums
}

/// Checks that Python's functions are where the interpreter runs them: each is followed, outwards, by another
/// one or the interpreter's loop. A part of the loop that the compiler has put elsewhere has no name.
#[track_caller]
fn check_places(stack: &Stack) {
    for pair in stack.frames.windows(2) {
        if pair[0].found_by == "python" {
            let is_run =
                pair[1].found_by == "python" || ["?", "_PyEval_EvalFrameDefault"].contains(&pair[1].name());
            assert!(is_run, "{stack}");
        }
    }
}

/// Recursion, generators, callbacks of C, special methods, destructors, exceptions, short-lived code,
/// coroutines, signals, and threads with and without the lock: every chain has exactly what it allocated,
/// with its lines.
#[test]
fn functions_are_those_that_python_sees() {
    check_chains("python-chains", &mut Command::new(interpreter()));
}

/// From 3.12 on, functions can have native code of their own, too, in memory that the interpreter maps.
#[test]
fn functions_are_those_that_python_sees_with_trampolines() {
    check_chains(
        "python-trampolines",
        Command::new(interpreter()).args(["-X", "perf"]),
    );
}

#[track_caller]
pub(crate) fn check_chains(test: &str, command: &mut Command) {
    let written = directory(test).join("chains");
    let report = trace_by(command, "python/chains.py", &[&written], &[]);
    let pid = report.targets[0].pid;
    let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
    let mut expected: BTreeMap<Vec<Function>, Amount> = BTreeMap::new();
    for line in std::fs::read_to_string(&written).expect("it was written").lines() {
        let (chain, blocks, bytes): (Vec<Function>, u64, u64) = serde_json::from_str(line).expect("JSON");
        let chain = chain
            .into_iter()
            .map(|(name, file, line)| (shortened(name), file, line));
        add(&mut expected, chain.collect(), Amount { bytes, blocks });
    }
    assert!(expected.len() > 400, "{}", expected.len());
    let found = by_functions(&report);
    let others: Vec<_> = found
        .keys()
        .filter(|chain| !expected.contains_key(*chain))
        .collect();
    for (chain, amount) in &expected {
        assert_eq!(
            found.get(chain),
            Some(amount),
            "{chain:?}; not expected: {others:?}; {:?}; {:?}",
            report.lost,
            report.unwinding
        );
    }
    assert_eq!(others, Vec::<&Vec<Function>>::new());
    report.stacks.iter().for_each(check_places);
    let python = report.unwinding.python;
    assert_eq!(
        (python.whole, python.in_part, python.not_placed, python.not_read),
        (report.allocated().blocks, 0, 0, 0)
    );
}

/// Shortens a long name to its start, as memleak does.
fn shortened(name: String) -> String {
    const KEPT: usize = 96;
    match name.len() > KEPT {
        true => format!("{}…", &name[..KEPT]),
        false => name,
    }
}

/// A walk that is recalled from the walk memo has the current functions, not those of the last time.
#[test]
fn remembered_walks_have_the_functions_of_now() {
    let directory = directory("python-checked");
    let report = trace(
        "python/chains.py",
        &[&directory.join("chains")],
        &["--check-walks"],
    );
    assert!(report.stacks.len() > 400, "{report}");
}

/// Children have their own functions at the addresses of each other's, and so have programs that they
/// execute.
#[test]
fn children_have_their_own_functions() {
    let [python, program] = [interpreter(), source("python/children.py")];
    let [python, program] = [&python, &program].map(|path| path.to_str().expect("UTF-8"));
    let report = trace_started(&[python, program]);
    let innermost = |stack: &Stack| functions(stack).first().map(|(name, ..)| name.clone());
    let mut found: Vec<_> = report
        .stacks
        .iter()
        .map(|stack| (innermost(stack).unwrap_or_default(), stack.allocated.bytes))
        .collect();
    found.sort();
    let expected = [
        ("executed", 3_000_001),
        ("made_0", 2_000_001),
        ("made_1", 2_000_002),
        ("made_2", 2_000_003),
        ("work", 1_000_001),
        ("work", 1_000_002),
        ("work", 1_000_002),
        ("work", 1_000_002),
    ];
    assert_eq!(
        found,
        expected.map(|(name, bytes)| (name.to_owned(), bytes)),
        "{report}"
    );
}

/// Where a stack runs through several interpreters, it is not known which functions are where, and none is
/// placed.
#[test]
fn functions_of_a_second_interpreter_are_not_placed() {
    let report = trace("python/interpreters.py", &[], &[]);
    let of_first = report
        .stacks
        .iter()
        .filter(|stack| stack.allocated.bytes == 3_000_001);
    let of_first: Vec<_> = of_first.map(functions).collect();
    let [chain] = &of_first[..] else {
        panic!("{report}");
    };
    let names: Vec<_> = chain.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names, ["of_the_first", "<module>"]);
    let of_second = report
        .stacks
        .iter()
        .filter(|stack| stack.allocated.bytes == 2_000_001);
    let of_second: Vec<_> = of_second.map(functions).collect();
    assert_eq!(of_second, [[]]);
    let python = report.unwinding.python;
    assert_eq!(
        (python.whole, python.in_part, python.not_placed, python.not_read),
        (1, 0, 1, 0)
    );
}

/// Damaged frames end a chain, and are never functions.
#[test]
fn damaged_frames_end_chains() {
    let report = trace("python/damaged.py", &[], &[]);
    let names = |bytes| -> Vec<String> {
        let mut stacks = report
            .stacks
            .iter()
            .filter(|stack| stack.allocated.bytes == bytes);
        let stack = stacks
            .next()
            .unwrap_or_else(|| panic!("none of {bytes} bytes: {report}"));
        functions(stack).into_iter().map(|(name, ..)| name).collect()
    };
    let around = [vec!["with_word"], vec!["cycle"; 255]].concat();
    assert_eq!(names(4_000_000), around);
    assert_eq!(names(4_000_001), ["with_word", "unreadable"]);
    assert_eq!(names(4_000_002), ["with_word", "<python function>", "<module>"]);
    assert_eq!(names(4_000_003), ["with_word"]);
    assert_eq!(names(4_000_004), vec!["recursion"; 256]);
}

/// Python that comes into a process later is reported, or read if it was expected.
#[test]
fn python_can_come_later() {
    let directory = directory("python-later");
    let host = compile(&directory, "python/embedding.c", &["-O1", "-ldl"]);
    let library = library();
    let mut program = Program::spawn(Command::new(&host).arg(&library));
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &LARGE);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    assert!(
        report.stacks.iter().all(|stack| functions(stack).is_empty()),
        "{report}"
    );
    let told = format!("{} has loaded Python since the attach", program.pid());
    let about_python = messages.iter().filter(|message| message.contains("Python"));
    let about_python: Vec<_> = about_python.map(|message| message.contains(&told)).collect();
    assert_eq!(about_python, [true], "{messages:#?}");
    assert_eq!(report.unwinding.python.not_read, 1);

    let mut program = Program::spawn(Command::new(&host).arg(&library));
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[&LARGE[..], &["--follow-fork"]].concat());
    program.step("done");
    let report = memleak.finish();
    let chains: Vec<_> = report.stacks.iter().map(functions).collect();
    let chain = [("plug_in", "<string>", 4), ("<module>", "<string>", 5)];
    assert_eq!(
        chains,
        [chain.map(|(name, file, line)| (name.into(), file.into(), line))],
        "{report}"
    );
}

/// Returns the library of the distribution's CPython, which its debugger needs, too.
fn library() -> String {
    let version = "import sys; print('libpython%d.%d.so.1.0' % sys.version_info[:2])";
    let output = Command::new(interpreter()).args(["-c", version]).output();
    let name = String::from_utf8(output.expect("it runs").stdout).expect("ASCII");
    name.trim().to_owned()
}

/// With `--python off`, nothing is read of Python.
#[test]
fn functions_can_be_left_out() {
    let report = trace("python/interpreters.py", &[], &["--python", "off"]);
    assert!(
        report.stacks.iter().all(|stack| functions(stack).is_empty()),
        "{report}"
    );
    let python = report.unwinding.python;
    assert_eq!(python, PythonStacks::default());
}
