//! Accounts under load, with common allocators: whatever threads do at once, each block is counted once, each
//! free is its block's, and nothing is lost.
//!
//! The load is small, so that the tests are short; with `MEMLEAK_FULL_LOAD` set it is 30 million blocks each.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use memleak_test::attach_paths::attach_paths;
use memleak_test::exclusion::alone;
use memleak_test::memleak::Memleak;
use memleak_test::program::{LIBRARIES, PATIENCE, Program, compile, cpu_seconds, directory, mimalloc, stock};
use memleak_test::report::{Amount, Report};

const RELEASE: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];

/// Threads of the load.
const THREADS: u64 = 30;

fn rounds() -> u64 {
    match std::env::var_os("MEMLEAK_FULL_LOAD") {
        Some(_) => 1_000_000,
        None => 10_000,
    }
}

fn build(test: &str, source: &str) -> PathBuf {
    compile(&directory(&format!("accounting-{test}")), source, &RELEASE)
}

/// Starts a program with an allocator loaded before the C library's, if one is given.
#[track_caller]
fn start(path: &Path, arguments: &[&str], preload: Option<(&str, &str)>) -> Program {
    let mut command = Command::new(path);
    command.args(arguments);
    if let Some((library, package)) = preload {
        command.env("LD_PRELOAD", stock(library, package));
    }
    let program = Program::spawn(&mut command);
    program.expect("ready");
    program
}

/// Checks that reports made meanwhile are consistent: nothing is below zero, and no number goes back.
#[track_caller]
fn check_reports(reports: &[Report]) {
    let mut before = (0, 0);
    for report in reports {
        report.check_sums();
        for stack in &report.stacks {
            let (allocated, outstanding) = (stack.allocated, stack.outstanding);
            assert!(
                allocated.blocks >= outstanding.blocks && allocated.bytes >= outstanding.bytes,
                "{report}"
            );
        }
        let now = (report.events.allocations, report.events.frees);
        assert!(
            now.0 >= before.0 && now.1 >= before.1 && now.0 >= now.1,
            "{report}"
        );
        before = now;
    }
}

/// Checks a load of thirty threads: all that they allocated is recorded to the block and the byte, and
/// nothing is left or lost.
#[track_caller]
fn check_load(preload: Option<(&str, &str)>, way: &str) {
    let path = build(
        &format!("load-{}-{way}", preload.map_or("glibc", |(_, name)| name)),
        "load/load_threads.cpp",
    );
    let count = rounds().to_string();
    let mut program = start(&path, &[way, &THREADS.to_string(), &count], preload);
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.2"]);
    program.send_line("");
    let mut reports = vec![memleak.report()];
    // The full load takes minutes, during which reports come.
    let line = loop {
        match program.try_line() {
            Some(line) => break line,
            None => reports.push(memleak.report()),
        }
    };
    assert_eq!(line, "done");
    reports.extend(memleak.finish_with_all_reports().0);
    check_reports(&reports);
    let report = reports.last().expect("a last one");
    assert_eq!(report.outstanding(), Amount::default(), "{report}");
    assert_eq!((report.lost.blocks, report.lost.bytes), (0, 0), "{report}");
    assert_eq!(report.events.unknown_frees, 0, "{report}");
    let made: Amount = report
        .through("allocate(unsigned long)")
        .iter()
        .map(|stack| stack.allocated)
        .sum();
    let bytes = THREADS * (0..rounds()).map(|round| 1 + round % 500).sum::<u64>();
    assert_eq!(
        made,
        Amount {
            bytes,
            blocks: THREADS * rounds()
        },
        "{report}"
    );
    program.step("joined");
    assert!(program.end().success());
}

/// Thirty threads and the C library's own allocator, by `operator new`: nothing is left, nothing is lost.
#[test]
fn thirty_threads_with_glibc() {
    check_load(None, "new");
}

/// Thirty threads and jemalloc, by `operator new`: nothing is left, nothing is lost.
#[test]
fn thirty_threads_with_jemalloc() {
    let library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    check_load(Some((library, "libjemalloc2")), "new");
}

/// Thirty threads and tcmalloc, by `operator new`: nothing is left, nothing is lost.
#[test]
fn thirty_threads_with_tcmalloc() {
    let library = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4";
    check_load(Some((library, "libgoogle-perftools4")), "new");
}

/// Thirty threads and mimalloc, by `operator new`: nothing is left, nothing is lost.
#[test]
fn thirty_threads_with_mimalloc() {
    let (library, package) = mimalloc();
    let library = format!("{LIBRARIES}/{library}");
    check_load(Some((&library, package)), "new");
}

/// The version of this system's glibc.
fn glibc() -> (u32, u32) {
    let output = Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .output()
        .expect("a part of glibc");
    let text = String::from_utf8(output.stdout).expect("text");
    let version = text
        .trim()
        .strip_prefix("glibc ")
        .and_then(|version| version.split_once('.'));
    let (major, minor) = version.expect("glibc 2.NN");
    (major.parse().expect("a number"), minor.parse().expect("a number"))
}

/// At a thread's end, glibc before 2.42 passes blocks that it kept for the thread to free once more: that is
/// told apart from a free of an unknown block by the program.
#[test]
fn threads_that_end() {
    let path = build("ends", "load/load_threads.cpp");
    let mut program = start(&path, &["malloc", "4", "1000"], None);
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    program.step("joined");
    let report = memleak.finish();
    report.check_sums();
    let events = &report.events;
    let frees_again = events.unknown_frees > 4;
    assert_eq!(frees_again, glibc() < (2, 42), "{report}");
    assert_eq!(events.unknown_frees, events.own_unknown_frees, "{report}");
    assert_eq!(report.outstanding(), Amount::default(), "{report}");
    assert!(program.end().success());
}

/// A process is killed under load: its outstanding blocks are at most those that its threads could have.
#[test]
fn killed_under_load() {
    let path = build("killed", "load/load_threads.cpp");
    let mut program = start(&path, &["new", &THREADS.to_string(), "100000000"], None);
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.2"]);
    program.send_line("");
    let first = memleak.report();
    program.signal("KILL");
    let (mut reports, _) = memleak.rest();
    reports.insert(0, first);
    check_reports(&reports);
    let report = reports.last().expect("a last one");
    assert!(report.events.allocations > 1000, "{report}");
    assert!(report.outstanding().blocks <= THREADS, "{report}");
    assert_eq!(
        (report.lost.blocks, report.events.unknown_frees),
        (0, 0),
        "{report}"
    );
    assert_eq!(report.targets[0].ended.as_deref(), Some("exited"));
}

/// Blocks that grow and move while other threads take their addresses, threads that are cancelled, jumps out
/// of callers, children that free their parent's blocks: nothing is left of all that, and no free was unknown
/// except those that threads pass on a second time at their end.
#[test]
fn rough_treatment() {
    let path = build("rough", "load/rough.c");
    for attach in attach_paths() {
        let mut program = start(&path, &["400"], None);
        let memleak = Memleak::attach_reporting(program.pid(), &["--attach", attach], &["0.1"]);
        program.step("done");
        let (reports, _) = memleak.finish_with_all_reports();
        check_reports(&reports);
        let report = reports.last().expect("a last one");
        assert_eq!(report.lost.blocks, 0, "{report}");
        assert_eq!(report.events.abandoned, 0, "{report}");
        for (function, blocks) in [
            ("resizer", 2 * (400 * 20 + 1)),
            ("taker", 2 * 400 * 20),
            ("cancelled", 400),
            ("jump", 400),
            ("fork_and_free", 400 / 16),
        ] {
            let stacks = report.through(function);
            let sum = |of: fn(&memleak_test::report::Stack) -> Amount| {
                stacks.iter().map(|stack| of(stack)).sum::<Amount>()
            };
            assert_eq!(
                sum(|stack| stack.allocated).blocks,
                blocks,
                "{function}: {report}"
            );
            assert_eq!(
                sum(|stack| stack.outstanding),
                Amount::default(),
                "{function}: {report}"
            );
        }
        assert!(program.end().success());
    }
}

/// The first bytes of malloc and free in a process's memory, where probes are put.
struct Code {
    memory: File,
    functions: Vec<u64>,
}

impl Code {
    fn of(pid: u32, line: &str) -> Self {
        let address = |text: &str| text.parse().expect("a number");
        Self {
            memory: File::open(format!("/proc/{pid}/mem")).expect("our own child's"),
            functions: line.split(' ').map(address).collect(),
        }
    }

    fn read(&self) -> Vec<[u8; 16]> {
        let read = |&at: &u64| {
            let mut bytes = [0; 16];
            self.memory.read_exact_at(&mut bytes, at).expect("it is mapped");
            bytes
        };
        self.functions.iter().map(read).collect()
    }
}

/// Returns rounds of the program per second of its CPU time.
fn speed(program: &mut Program) -> f64 {
    let pid = program.pid();
    let mut rounds = || -> f64 {
        program.send_line("");
        program.line().parse().expect("a number")
    };
    let (began, first) = (cpu_seconds(pid), rounds());
    thread::sleep(Duration::from_millis(300));
    (rounds() - first) / (cpu_seconds(pid) - began)
}

/// Traces of a program that allocates and frees without a pause begin and end, 12 times or, with
/// `MEMLEAK_FULL_LOAD`, 100: each sees no more outstanding blocks than the program has threads, which have
/// one each, and its probes are gone within half a second of the signal that ends it, whatever time the last
/// report takes. Then the program runs as before. (Perf events are not timed: newer kernels, which have
/// better ways, wait for a grace period for each.)
#[test]
fn attach_and_detach() {
    const LIVE: u64 = 2;
    // This measures time.
    let _alone = alone();
    let path = build("tight", "load/tight.c");
    let mut program = Program::start(&path, &[&LIVE.to_string()]);
    let code = Code::of(program.pid(), &program.line());
    let untouched = code.read();
    let before = speed(&mut program);
    let times = if std::env::var_os("MEMLEAK_FULL_LOAD").is_some() {
        100
    } else {
        12
    };
    let (mut longest, mut total) = (Duration::ZERO, 0);
    for turn in 0..times {
        let attach = ["session", "multi", "perf"][turn % 3];
        let memleak = Memleak::attach(program.pid(), &["-v", "--attach", attach]);
        assert_ne!(code.read(), untouched, "there are probes");
        thread::sleep(Duration::from_millis(20));
        let began = Instant::now();
        memleak.interrupt();
        while code.read() != untouched {
            assert!(began.elapsed() < *PATIENCE, "probes stay");
            thread::sleep(Duration::from_millis(1));
        }
        let took = began.elapsed();
        if attach != "perf" {
            longest = longest.max(took);
        }
        let (reports, messages) = memleak.rest();
        let report = reports.last().expect("a last one");
        report.check_sums();
        let left = report.outstanding();
        assert!(left.blocks <= LIVE, "{turn}, {attach}: false leaks: {report}");
        assert_eq!(report.lost.blocks, 0, "{report}");
        assert!(
            attach == "perf" || took < *PATIENCE / 200,
            "{turn}, {attach}: {took:?} until the probes were gone: {messages:#?}"
        );
        total += report.events.allocations;
    }
    assert!(total > 0, "nothing was seen");
    let _ = writeln!(
        std::io::stderr(),
        "probes gone after {longest:?} at most, {total} blocks seen"
    );
    let after = speed(&mut program);
    assert!(
        after > before / 3.0,
        "{before} rounds per second of CPU time before, {after} after"
    );
}
