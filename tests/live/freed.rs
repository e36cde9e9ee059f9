//! Free memory of allocators other than glibc's, by the frees that memleak saw, and of jemalloc by its own
//! structures: stale pointers in it hold nothing, and what was allocated there since holds all that it points
//! to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::verdict::{Counts, FLAGS, verdict_of, verdict_on};
use memleak_test::memleak::Memleak;
use memleak_test::program::{
    LIBRARIES, PATIENCE, Program, compile, compile_as, directory, end_if_only_compiled, mimalloc,
    require_root, stock,
};
use memleak_test::report::Report;

/// Libraries of allocators, by Debian's packages.
fn allocators() -> [PathBuf; 3] {
    [
        ("libjemalloc.so.2", "libjemalloc2"),
        ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
        mimalloc(),
    ]
    .map(|(library, package)| stock(&format!("{LIBRARIES}/{library}"), package))
}

/// Starts a program by memleak, with an allocator for both, with a verdict at its end. Returns the report,
/// and the program's output.
///
/// Addresses are the same in each run. Debian's Python is at a fixed address, and its heap begins just above
/// at a random one of at most 30 bits: one of the thousands of numbers in its data would now and then be the
/// address of a lost block, which then holds a chain of them.
fn judged_at_end(library: &Path, command: &[&str], directory: &Path) -> (Report, String) {
    end_if_only_compiled();
    require_root();
    let output = directory.join("report.json");
    let ended = Command::new("setarch")
        .args(["-R", "--", env!("CARGO_BIN_EXE_memleak")])
        .args(["--verdict", "--format", "json", "--force", "--output"])
        .arg(&output)
        .arg("--")
        .args(command)
        .env("LD_PRELOAD", library)
        .stdin(Stdio::null())
        .output()
        .expect("memleak was built");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{library:?}: {errors}");
    let reports = std::fs::read_to_string(&output).expect("a report");
    let last = reports.lines().last().unwrap_or_else(|| panic!("{errors}"));
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    (Report::parse(last), said)
}

/// Kind of blocks held by a pointer to their end, which leads to the next block where an allocator puts
/// nothing between them.
const HELD_BY_END: &str = "held_by_end";
/// Minimum share of the lost blocks that is found, in percent.
const FOUND: u64 = 99;

/// Checks that nearly all blocks are found that are lost by the program's own account, and that nothing else
/// is called lost.
#[track_caller]
fn check_kinds(library: &Path, lines: &[String], report: &Report) {
    let (mut lost, mut found, mut wrong) = (0, 0, Vec::new());
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let [kind, blocks, truth, ..] = words[..] else {
            continue;
        };
        let blocks: u64 = blocks.parse().expect("a number");
        let counts = verdict_on(report, kind);
        let [definitely, indirectly, reachable, _] = counts;
        match truth {
            "lost" => {
                lost += blocks;
                found += definitely + indirectly;
            }
            "held" | "stale" if kind != HELD_BY_END && reachable != blocks => {
                wrong.push(format!("{line}: {counts:?}"));
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{library:?}: {wrong:#?}");
    assert!(lost >= 400, "{library:?}: {lines:?}");
    assert!(100 * found >= FOUND * lost, "{library:?}: {found} of {lost}");
}

/// Compiles the program of all kinds of held and lost blocks.
fn compile_kinds(directory: &Path) -> PathBuf {
    let unloaded = directory.join("unloaded.so");
    compile_as(&unloaded, "verdicts/unloaded.c", &["-shared", "-fPIC"]);
    compile(directory, "verdicts/kinds.cpp", &FLAGS)
}

/// With each allocator, as many lost blocks are found as with glibc's own, and none that is held is called
/// lost.
#[test]
fn kinds_with_other_allocators() {
    let directory = directory("freed-kinds");
    let path = compile_kinds(&directory);
    let path = path.to_str().expect("a plain name");
    for library in allocators() {
        let (report, said) = judged_at_end(&library, &[path, "exit", "shown", "20"], &directory);
        let lines: Vec<String> = said.lines().map(str::to_owned).collect();
        check_kinds(&library, &lines, &report);
    }
}

/// A process that memleak attaches to later has jemalloc's records from before, which jemalloc's own
/// structures tell apart from blocks.
#[test]
fn kinds_attached_to_later_with_jemalloc() {
    let path = compile_kinds(&directory("freed-attached"));
    let [jemalloc, ..] = allocators();
    let mut command = Command::new(path);
    let mut program = Program::spawn(
        command
            .args(["attached", "shown", "20"])
            .env("LD_PRELOAD", &jemalloc),
    );
    let memleak = Memleak::attach(program.pid(), &["--verdict"]);
    program.send_line("");
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "ready") {
        lines.push(program.line());
    }
    check_kinds(&jemalloc, &lines, &memleak.finish());
    program.end();
}

/// Script that loses a thousand blocks by C's malloc, amid objects of all sizes that come and go.
const PYTHON: &str = r#"
import ctypes, json
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_size_t
c.malloc.argtypes = [ctypes.c_size_t]
kept = [json.loads('{"a": [1, 2, {"b": "%d"}]}' % number) for number in range(5000)]
sum(c.malloc(48 + number % 80) for number in range(1000))
junk = [("x%d" % number) * 40 for number in range(5000)]
kept = kept[::3]
del junk
"#;

/// Python with each allocator: the blocks that it lost are found, and nothing else is.
#[test]
fn python_with_other_allocators() {
    let directory = directory("freed-python");
    let python = stock("/usr/bin/python3", "python3");
    let python = python.to_str().expect("a plain name");
    for library in allocators() {
        let (report, _) = judged_at_end(&library, &[python, "-c", PYTHON], &directory);
        let [definitely, indirectly, ..] = verdict_on(&report, "ffi_call");
        let found = definitely + indirectly;
        assert!((990..=1010).contains(&found), "{library:?}: {found}");
        let verdict = &report.verdict.as_ref().expect("it was asked for").verdict;
        let all = verdict.definitely_lost.blocks + verdict.indirectly_lost.blocks;
        // The program itself loses nothing else; the interpreter drops some of its own blocks at its end.
        assert!(all <= found + 20, "{library:?}: {all} in all");
    }
}

/// Runs a program with `library` as its allocator until it is ready, and makes a verdict then. Returns its
/// last line, too.
fn judged(path: &Path, arguments: &[&str], library: Option<&Path>) -> (Report, String) {
    let mut command = Command::new(path);
    command.args(arguments);
    if let Some(library) = library {
        // Otherwise mimalloc from 3 on would allocate all large blocks from memory that it keeps.
        command
            .env("LD_PRELOAD", library)
            .env("MIMALLOC_DISALLOW_ARENA_ALLOC", "1");
    }
    let mut program = Program::spawn(&mut command);
    program.expect("started");
    let memleak = Memleak::attach(program.pid(), &["--verdict"]);
    program.send_line("");
    let line = program.line();
    let report = memleak.finish();
    assert!(program.end().success());
    (report, line)
}

/// Memory of freed blocks goes back to the kernel and is used again, as a stack, a mapping, a moved mapping,
/// and above the break: each holds the blocks that it points to.
#[test]
fn memory_that_is_used_again() {
    const KINDS: [&str; 4] = [
        "held_on_stack",
        "held_in_mapping",
        "held_in_moved",
        "held_above_break",
    ];
    let directory = directory("freed-reused");
    let path = compile(&directory, "verdicts/reused.c", &["-O2", "-g", "-pthread"]);
    let (library, package) = mimalloc();
    let mimalloc = stock(&format!("{LIBRARIES}/{library}"), package);
    // mimalloc before 3 keeps what is not larger than its segments.
    for (library, bytes, least) in [(None, "2097152", 4), (Some(&*mimalloc), "67108864", 1)] {
        let (report, line) = judged(&path, &[bytes], library);
        let reused = line
            .strip_prefix("ready ")
            .and_then(|ways| ways.parse::<u32>().ok());
        assert!(reused >= Some(least), "{library:?}: {line}");
        for kind in KINDS {
            let [definitely, indirectly, ..] = verdict_on(&report, kind);
            assert_eq!(definitely + indirectly, 0, "{library:?}: {kind}\n{report}");
        }
        let reachable: u64 = KINDS.iter().map(|kind| verdict_on(&report, kind)[2]).sum();
        assert!(reachable >= 20 * u64::from(least), "{library:?}: {reachable}");
    }
}

/// An unknown allocator: if it only has the functions of C, memory that was freed holds nothing; if it can
/// allocate by other functions, it may have reused that memory, unseen, and everything there holds what it
/// points to.
#[test]
fn allocations_that_are_not_seen() {
    let directory = directory("freed-unseen");
    let path = compile(&directory, "verdicts/unseen.c", &["-O1", "-g"]);
    let library = |name: &str, flags: &[&str]| {
        let flags = [&["-O2", "-shared", "-fPIC", "-fno-builtin"], flags].concat();
        let output = directory.join(name);
        compile_as(&output, "verdicts/tiny_malloc.c", &flags);
        output
    };
    let verdicts = |library: &Path| {
        let (report, line) = judged(&path, &[], Some(library));
        assert_eq!(line, "ready");
        ["held_by_other", "lost_stale"].map(|kind| verdict_on(&report, kind))
    };
    let [held, lost]: [Counts; 2] = verdicts(&library("tiny.so", &[]));
    assert_eq!(held, [0, 0, 20, 0]);
    assert_eq!(lost, [20, 0, 0, 0]);
    let [held, lost] = verdicts(&library("tiny_other.so", &["-DOTHER"]));
    assert_eq!(held, [0, 0, 20, 0]);
    assert_eq!(lost[2] + lost[0], 20);
}

/// Starts redis, which has jemalloc. Returns its socket, too.
fn redis(directory: &Path) -> (Program, String) {
    let socket = directory.join("socket");
    let path = socket.to_str().expect("a plain name").to_owned();
    let settings = [
        "--port",
        "0",
        "--save",
        "",
        "--appendonly",
        "no",
        "--unixsocket",
        &path,
    ];
    let mut command = Command::new(stock("/usr/bin/redis-server", "redis-server"));
    let server = Program::spawn(command.args(settings).current_dir(directory));
    let began = Instant::now();
    while !socket.exists() {
        assert!(began.elapsed() < *PATIENCE, "redis-server makes no socket");
        std::thread::sleep(Duration::from_millis(50));
    }
    (server, path)
}

fn load(socket: &str, requests: &str) -> Command {
    let mut command = Command::new(stock("/usr/bin/redis-benchmark", "redis-tools"));
    command.args([
        "-s", socket, "-n", requests, "-c", "20", "-r", "20000", "-d", "300", "-q",
    ]);
    command.args(["-t", "set,get,lpush,rpop,sadd,hset,zadd,mset"]);
    command.stdout(Stdio::null());
    command
}

/// Redis, with jemalloc, under load: no report calls a block lost that is freed later.
#[test]
fn redis_under_load() {
    let (mut server, socket) = redis(&directory("freed-redis"));
    let memleak = Memleak::attach_reporting(server.pid(), &["--verdict=each"], &["2"]);
    assert!(
        load(&socket, "40000")
            .status()
            .expect("it is installed")
            .success()
    );
    let reports = memleak.finish_with_reports();
    assert!(reports.len() > 1, "{}", reports.len());
    for report in &reports {
        let judgement = report.verdict.as_ref().expect("it was asked for");
        assert_eq!(judgement.freed_later.blocks, 0, "{report}");
    }
    server.signal("TERM");
    assert!(server.await_end().success());
}

/// Addresses of lost blocks, in a verdict on all blocks of a process.
fn lost(found: &serde_json::Value) -> BTreeSet<String> {
    let groups = found["lost"].as_array().expect("a list").iter();
    let addresses = groups.filter_map(|group| group["addresses"].as_array()).flatten();
    addresses
        .filter_map(|address| Some(address.as_str()?.to_owned()))
        .collect()
}

/// Redis under load, judged without a trace by jemalloc's lists: hardly any block is called lost, and each of
/// those still is when the server has given back all that it had.
#[test]
fn redis_without_a_trace() {
    require_root();
    let (mut server, socket) = redis(&directory("freed-redis-untraced"));
    let mut load = load(&socket, "1000000").spawn().expect("it is installed");
    let under_load: Vec<_> = (0..3).map(|_| verdict_of(&server, &[])).collect();
    assert!(
        load.try_wait().is_ok_and(|ended| ended.is_none()),
        "the load has ended"
    );
    load.kill().expect("it runs");
    load.wait().expect("it was started");
    let mut client = Command::new(stock("/usr/bin/redis-cli", "redis-tools"));
    let flushed = client
        .args(["-s", &socket, "flushall"])
        .output()
        .expect("it is installed");
    assert!(flushed.status.success(), "{flushed:?}");
    let last = lost(&verdict_of(&server, &[]));
    for found in &under_load {
        let allocators = found["allocators"].as_array().expect("a list");
        assert!(allocators.contains(&"jemalloc".into()), "{found}");
        let verdict = &found["verdict"];
        assert!(verdict["reachable"]["blocks"].as_u64() > Some(20_000), "{found}");
        assert_eq!(verdict["freed_later"]["blocks"], 0, "{found}");
        assert!(lost(found).is_subset(&last), "{found}, then {last:?}");
        assert!(lost(found).len() < 100, "{found}");
    }
    server.signal("TERM");
    assert!(server.await_end().success());
}
