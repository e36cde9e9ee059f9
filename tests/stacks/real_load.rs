//! Real programs at real work, most from before their main to their exit, compared with an independent
//! witness (see `memleak_test::witness`): nearly every walk is complete, nearly every call is reported as by
//! the witness, and no frame is invented.
//!
//! The work is small, so that the tests are short; with `MEMLEAK_FULL_LOAD` set it is of realistic size.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memleak_test::exclusion::alone;
use memleak_test::memleak::Memleak;
use memleak_test::program::{PATIENCE, compile, directory, free_port, load, run_tool, source, stock};
use memleak_test::witness::{Accounts, Call, READY_TO_DONE, Witness};

/// Walks of which one may be incomplete.
const INCOMPLETE_ONE_IN: u64 = 1000;
/// Calls of which memleak and the witness may differ on one.
const DISAGREE_ONE_IN: u64 = 10_000;

/// Room for more stacks than any of these programs has.
const FLAGS: [&str; 4] = ["--stack-storage-size", "400000", "--max-blocks", "4000000"];

/// Checks both accounts, and that there were at least `least_calls` calls; prints the shares.
#[allow(clippy::print_stdout, reason = "what the test found")]
#[track_caller]
fn check(name: &str, accounts: &Accounts, least_calls: u64) {
    let report = &accounts.report;
    assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
    let walks = &report.unwinding.allocations;
    let total: u64 = walks.values().sum();
    let incomplete = total - walks["complete"];
    let witnessed: u64 = accounts.witnessed.values().map(|amount| amount.blocks).sum();
    let agree = agreeing(accounts);
    let disagree = total.max(witnessed) - agree;
    let _ = writeln!(
        std::io::stderr(),
        "{name}: {total} calls from {} stacks; {incomplete} incomplete, {disagree} differ: {walks:?}",
        accounts.witnessed.len()
    );
    assert!(witnessed >= least_calls, "{witnessed} calls");
    check_frames(accounts);
    assert!(incomplete * INCOMPLETE_ONE_IN <= total, "{:?}", report.unwinding);
    assert!(
        disagree * DISAGREE_ONE_IN <= witnessed,
        "{disagree} of {witnessed}:\n{}",
        accounts.differences()
    );
}

/// Returns the number of calls on which both agree.
fn agreeing(accounts: &Accounts) -> u64 {
    let both = accounts.reported.iter().map(|(call, amount)| {
        let witnessed = accounts.witnessed.get(call).map_or(0, |amount| amount.blocks);
        witnessed.min(amount.blocks)
    });
    both.sum()
}

/// Checks that each stack of memleak's is one of the witness's, or is said to be cut and is the beginning of
/// one.
#[track_caller]
fn check_frames(accounts: &Accounts) {
    for call in accounts.reported.keys() {
        let is_true = |truth: &Call| {
            if call.complete {
                truth == call
            } else {
                truth.allocator == call.allocator && truth.frames.starts_with(&call.frames)
            }
        };
        let known = accounts.witnessed.contains_key(call) || accounts.witnessed.keys().any(is_true);
        assert!(known, "an invented stack: {call:#x?}");
    }
}

#[track_caller]
fn check_whole(name: &str, command: &mut Command, least_calls: u64) {
    let directory = directory(&format!("real_load-{name}"));
    let accounts = Witness::preloaded(&directory).watch_whole(command.current_dir(&directory), &FLAGS);
    check(name, &accounts, least_calls);
}

/// clang, with LLVM and its own libraries, compiling C++.
#[test]
fn clang() {
    // Naming tens of thousands of stacks takes a minute of a CPU, and is waited for.
    let _alone = alone();
    let mut command = Command::new(stock("/usr/bin/clang++", "clang"));
    command
        .args(load(["-fsyntax-only"].as_slice(), &["-O2", "-S"]))
        .arg(source("load/load.cpp"));
    check_whole("clang", &mut command, 30_000);
}

/// Modules of Python's own tests. (Once their imports are loaded: another test is about the time between a
/// library's loading and its table.)
#[test]
fn python() {
    let script = "
import io, sys, unittest
from test import MODULES
def run():
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in [MODULES])
    return unittest.TextTestRunner(stream=io.StringIO()).run(tests)
assert run().wasSuccessful()
print('ready', flush=True)
sys.stdin.readline()
assert run().wasSuccessful()
print('done', flush=True)
sys.stdin.readline()
";
    let modules = load(
        "test_textwrap, test_shlex",
        "test_textwrap, test_shlex, test_bisect, test_heapq, test_difflib, test_json",
    );
    let mut command = Command::new(stock("/usr/bin/python3", "python3"));
    // Each object is a call of malloc.
    command
        .args(["-c", &script.replace("MODULES", modules)])
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "1");
    let witness = Witness::preloaded(&directory("real_load-python"));
    check(
        "python",
        &witness.watch(&mut command, &READY_TO_DONE, &FLAGS),
        50_000,
    );
}

/// rustc, compiling a library.
#[test]
fn rustc() {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output = output.expect("rustc").stdout;
    let sysroot = String::from_utf8(output).expect("a path");
    let library = compiler_library(&Path::new(sysroot.trim()).join("lib"));
    let mut command = Command::new(compiler_with_glibc(&library));
    let emit = load(["--emit", "metadata"], ["--emit", "obj"]);
    command
        .args(["--edition", "2021", "--crate-type", "lib", "-O", "--sysroot"])
        .arg(sysroot.trim())
        .args(emit)
        .arg(source("load/load.rs"));
    check_whole("rustc", &mut command, 10_000);
}

/// Finds the library that contains the compiler.
#[track_caller]
fn compiler_library(directory: &Path) -> PathBuf {
    let entries = std::fs::read_dir(directory).expect("the toolchain's libraries");
    let is_compiler = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("librustc_driver-") && name.ends_with(".so")
    };
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(is_compiler).expect("librustc_driver")
}

/// Compiles a program that runs the compiler with glibc's malloc: rustc's own defines malloc, by jemalloc,
/// before any preloaded library's.
#[track_caller]
fn compiler_with_glibc(library: &Path) -> PathBuf {
    let symbols = Command::new("nm")
        .args(["--dynamic", "--defined-only"])
        .arg(library)
        .output();
    let symbols = String::from_utf8(symbols.expect("nm").stdout).expect("names");
    let names = symbols.lines().filter_map(|line| line.split(' ').next_back());
    let main = names
        .filter(|name| name.starts_with("_R"))
        .find(|name| name.ends_with("17rustc_driver_impl4main"));
    let main = format!("-DCOMPILER_MAIN={}", main.expect("the compiler's main"));
    let path = library.to_str().expect("UTF-8");
    let rpath = format!("-Wl,-rpath,{}", library.parent().expect("a directory").display());
    compile(
        &directory("real_load-rustc-program"),
        "load/rustc.c",
        &["-O2", &main, path, &rpath],
    )
}

/// Waits until the server answers.
#[track_caller]
fn await_answer(port: u16) -> TcpStream {
    let started = Instant::now();
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.write_all(b"PING\r\n").expect("it reads");
            stream.read_exact(&mut [0; 7]).expect("it answers");
            return stream;
        }
        assert!(started.elapsed() < *PATIENCE, "the server does not listen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// redis-server, with jemalloc, under its benchmark tool.
#[test]
fn redis() {
    let directory = directory("real_load-redis");
    let port = free_port().to_string();
    let witness = Witness::preloaded_for_jemalloc(&directory);
    let mut server = witness.start(
        Command::new(stock("/usr/bin/redis-server", "redis-server"))
            .args(["--port", &port, "--save", "", "--appendonly", "no"])
            .current_dir(&directory)
            .env("GROUND_TRUTH_GATE", "1"),
    );
    server.expect("ready");
    let memleak = Memleak::attach(server.pid(), &FLAGS);
    server.send_line("");
    let mut connection = await_answer(port.parse().expect("a number"));
    let requests = load("4000", "200000");
    run_tool(
        Command::new(stock("/usr/bin/redis-benchmark", "redis-tools"))
            .args(["-p", &port, "-n", requests, "-q", "-c", "20"])
            .stdout(Stdio::null()),
    );
    connection.write_all(b"SHUTDOWN NOSAVE\r\n").expect("it reads");
    let accounts = witness.finish_whole(&mut server, memleak);
    check("redis", &accounts, 50_000);
}
