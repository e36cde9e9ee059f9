//! Fast paths of walks change nothing else: over hundreds of thousands of real walks, each is done again in
//! the same probe without any of them (no rule cache, no walk memo, each slot of the stack read by itself),
//! and finds the same stack.
//!
//! With `MEMLEAK_FULL_LOAD` set it is millions of walks of each program; with `MEMLEAK_SHORT_LOAD`, for
//! machines that are emulated, some thousands.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, free_port, load, run_tool, source, stock};

/// Factor of the full load.
fn times() -> u64 {
    load(1, 20)
}

/// Walks are checked, and one stack is listed: a list of all would be a gigabyte of JSON.
const CHECKED: [&str; 7] = [
    "--check-walks",
    "--top",
    "1",
    "--stack-storage-size",
    "400000",
    "--max-blocks",
    "4000000",
];

/// Ends the trace, and checks that at least `least_checked` walks were checked, that at least
/// `least_recalled` were recalled from the walk memo, and that none is different. Walks that found no room,
/// since others were preempted on their CPU, cannot be checked, and are in the report.
#[allow(clippy::print_stderr, reason = "what the test found")]
#[track_caller]
fn check(name: &str, memleak: Memleak, least_checked: u64, least_recalled: u64) {
    let (report, messages) = memleak.finish_with_messages();
    let line = messages.iter().find(|line| line.contains("walks checked: "));
    let line = line.unwrap_or_else(|| panic!("no count of checked walks: {messages:#?}"));
    _ = writeln!(std::io::stderr(), "{name}: {line}");
    let numbers: Vec<u64> = line
        .split(|character: char| !character.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    let [.., checked, recalled, different] = numbers[..] else {
        panic!("three counts: {line}");
    };
    assert_eq!(different, 0, "{line}");
    let by_end = &report.unwinding.allocations;
    let without_room = by_end.get("scratch_busy").unwrap_or(&0);
    assert!(checked + without_room >= least_checked, "{line}; {by_end:?}");
    assert!(recalled >= least_recalled, "{line}");
}

/// Starts the benchmark's target: each frame is of another function, and of another size.
fn stacks(name: &str, flags: &[&str]) -> Program {
    let flags = [&["-O2", "-pthread"], flags].concat();
    let path = compile(&directory(name), "../../benches/probe_cost/target.c", &flags);
    Program::start(&path, &["plain"])
}

/// Makes it allocate `pairs` pairs in each of `threads` threads.
#[track_caller]
fn allocate(program: &mut Program, stacks: &str, depth: u32, pairs: u64, threads: u32) {
    program.send_line(&format!("{stacks} {depth} {pairs} {threads}"));
    let answer = program.line();
    assert!(answer.parse::<f64>().is_ok(), "{answer}");
}

/// One stack, some, and thousands; small and large frames; more threads than CPUs.
#[test]
fn stacks_of_all_kinds() {
    // Stacks of large frames are larger than what the walk memo remembers.
    let scaled = |count: u64| match std::env::var_os("MEMLEAK_SHORT_LOAD") {
        Some(_) => count / 20,
        None => count * times(),
    };
    for (name, flags, recalled) in [
        (
            "fast_paths-small",
            ["-fomit-frame-pointer", "-DFRAME_UNIT=16"],
            30_000,
        ),
        (
            "fast_paths-large",
            ["-fomit-frame-pointer", "-DFRAME_UNIT=448"],
            0,
        ),
    ] {
        let mut program = stacks(name, &flags);
        let memleak = Memleak::attach(program.pid(), &CHECKED);
        allocate(&mut program, "hot", 40, scaled(5000), 8);
        allocate(&mut program, "varied", 60, scaled(2500), 8);
        allocate(&mut program, "distinct", 40, scaled(2500), 8);
        check(name, memleak, scaled(80_000), scaled(recalled));
    }
}

/// Walks along frame pointers, of one stack and of some, by eight threads.
#[test]
fn frame_pointers() {
    let mut program = stacks("fast_paths-fp", &["-fno-omit-frame-pointer"]);
    let memleak = Memleak::attach(program.pid(), &[&CHECKED[..], &["--unwind", "fp"]].concat());
    allocate(&mut program, "hot", 40, 5000 * times(), 8);
    allocate(&mut program, "varied", 60, 2500 * times(), 8);
    check("frame pointers", memleak, 60_000 * times(), 30_000 * times());
}

/// redis-server under its benchmark tool.
#[test]
fn redis() {
    let directory = directory("fast_paths-redis");
    let port = free_port().to_string();
    let mut command = Command::new(stock("/usr/bin/redis-server", "redis-server"));
    command
        .args(["--port", &port, "--save", "", "--appendonly", "no"])
        .current_dir(&directory);
    let server = Program::spawn(&mut command);
    while !server.line().contains("eady to accept connections") {}
    let memleak = Memleak::attach(server.pid(), &CHECKED);
    run_tool(
        Command::new(stock("/usr/bin/redis-benchmark", "redis-tools"))
            .args(["-p", &port, "-q", "-c", "20", "-n"])
            .arg((500 * times()).to_string())
            .stdout(Stdio::null()),
    );
    check("redis", memleak, 30_000 * times(), 20_000 * times());
}

/// Python, each of whose objects is a call of malloc: deep stacks of few functions, and libraries that come
/// while it runs and could be unloaded again.
#[test]
fn python() {
    let script = "
import io, sys, unittest
print('ready', flush=True)
sys.stdin.readline()
for _ in range(TIMES):
    import json, decimal, sqlite3, ctypes
    from test import test_textwrap, test_shlex
    modules = [test_textwrap, test_shlex]
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in modules)
    assert unittest.TextTestRunner(stream=io.StringIO()).run(tests).wasSuccessful()
    json.loads(json.dumps([decimal.Decimal(1).to_eng_string()] * 1000))
    sqlite3.connect(':memory:').execute('create table t (x)')
print('done', flush=True)
sys.stdin.readline()
";
    let mut command = Command::new(stock("/usr/bin/python3", "python3"));
    command
        .args(["-c", &script.replace("TIMES", &times().to_string())])
        .env("PYTHONMALLOC", "malloc");
    let mut program = Program::spawn(&mut command);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &CHECKED);
    program.step("done");
    check("python", memleak, 50_000 * times(), 20_000 * times());
}

/// clang, a hundred megabytes of code, from its start on.
#[test]
fn clang() {
    let compiler = stock("/usr/bin/clang++", "clang");
    // Each run has its own stacks, all of which are named in the end.
    let times = times().min(4);
    let mut shell = Command::new("/bin/sh");
    let run = format!(
        "echo ready; read line; for i in $(seq {}); do {} -fsyntax-only -x c++ {}; done; echo done; read line",
        times,
        compiler.display(),
        quoted(&source("load/load.cpp"))
    );
    let mut program = Program::spawn(shell.args(["-c", &run]));
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[&CHECKED[..], &["--follow-fork"]].concat());
    program.step("done");
    check("clang", memleak, 30_000 * times, 0);
}

/// java: a separate interpreter and compilers, whose frames are followed on trial.
#[test]
fn java() {
    for flags in ["-XX:-PreserveFramePointer", "-XX:+PreserveFramePointer"] {
        let mut command = Command::new(stock("/usr/bin/java", "openjdk-17-jdk-headless"));
        command
            .arg(flags)
            .arg(source("java/Load.java"))
            .arg((1000 * times()).to_string());
        let mut program = Program::spawn(&mut command);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &CHECKED);
        program.step("done");
        check(flags, memleak, 8_000 * times(), 0);
    }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
