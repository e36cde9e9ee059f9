//! `--faults`: each page by which a process's own memory grows is charged to the stack that touched it first,
//! whatever allocates; what is discarded is taken off, and what is not growth is not counted.

use std::fs;
use std::process::Command;

use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, run_tool, source, stock};
use memleak_test::report::{Report, from_main};

const MIB: u64 = 1 << 20;

/// Optimized as usual, with tail calls that would leave frames out kept as calls.
const RELEASE: [&str; 4] = ["-O2", "-fno-optimize-sibling-calls", "-pthread", "-Wall"];

/// Anonymous resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes
        .expect("the field")
        .trim()
        .parse::<u64>()
        .expect("a number")
        * 1024
}

/// Bytes of a huge page.
fn huge_bytes() -> u64 {
    let size = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size.map_or(2 * MIB, |size| size.trim().parse().expect("a number"))
}

/// A trace of a program from its "ready" to its "done": the last report, and by how much it has grown.
struct Growth {
    report: Report,
    bytes: u64,
}

impl Growth {
    #[track_caller]
    fn of(program: &mut Program, flags: &[&str]) -> Self {
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), &[&["--faults"], flags].concat());
        let before = resident(program.pid());
        program.step("done");
        let bytes = resident(program.pid()) - before;
        let report = memleak.finish();
        report.check_sums();
        assert_eq!(report.source, "faults");
        Self { report, bytes }
    }

    /// Checks that what is outstanding is what it has grown by, within 5 %, and that next to nothing was
    /// lost.
    #[track_caller]
    fn check(&self) {
        let Self { report, bytes } = self;
        let held = report.outstanding().bytes;
        assert!(
            held.abs_diff(*bytes) * 20 <= *bytes,
            "{held} B of {bytes} B:\n{report}"
        );
        assert!(report.lost.bytes * 100 <= *bytes, "{report}");
    }

    /// Outstanding bytes of the stacks that pass a function.
    fn through(&self, function: &str) -> u64 {
        let stacks = self.report.through(function);
        stacks.iter().map(|stack| stack.outstanding.bytes).sum()
    }
}

fn growth(test: &str, flags: &[&str]) -> Growth {
    let directory = directory(&format!("faults-{test}"));
    let path = compile(&directory, "faults/growth.c", &RELEASE);
    let file = directory.join("file");
    fs::write(&file, vec![1; 4 << 20]).expect("a new file");
    let huge = huge_bytes().to_string();
    let mut program = Program::start(&path, &[file.to_str().expect("a path of ours"), &huge]);
    let growth = Growth::of(&mut program, flags);
    assert!(program.end().success());
    growth
}

/// Each way of growing is at its function, to a page or two; memory that is not the process's own, was there
/// before, or has been discarded is not counted.
#[test]
fn every_way_of_growing() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let growth = growth("ways", &[]);
    growth.check();
    for (function, bytes) in [
        ("arenas", 16 * MIB),
        ("program_break", 4 * MIB),
        ("break_and_back", 0),
        ("by_read", 4 * MIB),
        ("first_life", 0),
        ("second_life", 2 * MIB),
        ("unmapped", MIB),
        ("moved", 3 * MIB),
        ("only_read", 0),
        ("shared", 0),
        ("of_file", MIB),
        ("populated", 2 * MIB),
        ("in_thread", 3 * MIB),
    ] {
        let held = growth.through(function);
        // The rest is its stack, and what the C library writes besides.
        assert!(
            (bytes..=bytes + 32 * 1024).contains(&held),
            "{function}: {held} of {bytes}:\n{}",
            growth.report
        );
    }
    for function in ["huge", "huge_in_large"] {
        let huge = growth.through(function);
        assert!(
            huge == 4 * huge_bytes() || huge <= 16 * 65536,
            "{function}: {huge}:\n{}",
            growth.report
        );
    }
    let second = growth.report.only_through("second_life");
    second.check_names(&from_main(&["touch", "second_life", "main"]));
    assert_eq!(
        (&*second.end, &*second.allocator),
        ("complete", "page fault"),
        "{second}"
    );
    // Stacks begin at the system call, not in the kernel.
    let read = growth.report.through("by_read");
    assert!(
        read.iter().all(|stack| stack.end == "complete"),
        "{}",
        growth.report
    );
}

/// One of N pages stands for N: the truth is within what the standard error says, and stacks are the same.
#[test]
fn one_of_n_pages() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let Growth { report, .. } = growth("sampled", &["-s", "4"]);
    for (function, bytes) in [
        ("arenas", 16 * MIB),
        ("program_break", 4 * MIB),
        ("by_read", 4 * MIB),
    ] {
        let stacks = report.through(function);
        let held: u64 = stacks.iter().map(|stack| stack.outstanding.bytes).sum();
        // Of 1024 pages, one of 4: the standard error is 5.4 %.
        let error = (bytes as f64 * 4096.0 * 3.0).sqrt();
        let difference = held.abs_diff(bytes) as f64;
        assert!(
            difference < 6.0 * error,
            "{function}: {held} of {bytes}, standard error {error}:\n{report}"
        );
    }
    for (function, most) in [("first_life", 0), ("only_read", 0)] {
        let held: u64 = report
            .through(function)
            .iter()
            .map(|stack| stack.outstanding.bytes)
            .sum();
        assert_eq!(held, most, "{function}:\n{report}");
    }
}

/// A child has what it touches itself, and not what it has of its parent; copies after fork are no growth of
/// either.
#[test]
fn children_have_their_own() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let path = compile(&directory("faults-fork"), "faults/fork.c", &RELEASE);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--faults", "--follow-fork"]);
    program.send_line("");
    program.expect("child");
    // The pages of an ended process stay as they were last known.
    program.send_line("");
    program.expect("done");
    let report = memleak.finish();
    program.send_line("");
    assert!(program.end().success());
    report.check_sums();
    for (function, bytes, is_parents) in [
        ("of_parent", 4 * MIB, true),
        ("copied_by_parent", 0, true),
        ("copied_by_child", 0, false),
        ("of_child", 3 * MIB, false),
    ] {
        let stacks = report.through(function);
        let held: u64 = stacks.iter().map(|stack| stack.outstanding.bytes).sum();
        assert!(
            (bytes..=bytes + 32 * 1024).contains(&held),
            "{function}: {held}:\n{report}"
        );
        for stack in stacks {
            assert_eq!(stack.pid == program.pid(), is_parents, "{stack}");
        }
    }
}

/// A heap of which no allocator function is known. Stacks of goroutines are complete: they end in the
/// function that Go's runtime marks as their first.
#[test]
fn heap_of_go() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let directory = directory("faults-go");
    let path = directory.join("heap");
    run_tool(
        Command::new(stock("/usr/bin/go", "golang-go"))
            .args(["build", "-o"])
            .arg(&path)
            .arg(source("faults/heap.go"))
            .env("GOCACHE", directory.join("cache"))
            .env("GO111MODULE", "off"),
    );
    let mut program = Program::start(&path, &[]);
    let growth = Growth::of(&mut program, &[]);
    assert!(program.end().success());
    growth.check();
    let at_its_stack = growth.through("main.grow");
    assert!(
        at_its_stack * 100 >= growth.bytes * 95,
        "{at_its_stack} of {}:\n{}",
        growth.bytes,
        growth.report
    );
    let stacks = growth.report.through("main.grow");
    // Functions without a name are numbered, those of `rendezvous` too in some versions of Go.
    let is_goroutine = |name: &str| name.starts_with("main.main.func");
    let whole = stacks.iter().filter(|stack| stack.end == "complete");
    let (mut in_whole, mut in_goroutine) = (0, 0);
    for stack in whole {
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.name()).collect();
        let [.., first, outermost] = names[..] else {
            panic!("{stack}")
        };
        assert!(outermost.starts_with("runtime.goexit"), "{stack}");
        assert!(first == "runtime.main" || is_goroutine(first), "{stack}");
        in_whole += stack.outstanding.bytes;
        in_goroutine += u64::from(is_goroutine(first)) * stack.outstanding.bytes;
    }
    // The rest is of the runtime's work on another stack, and of garbage collections.
    assert!(in_whole * 100 >= at_its_stack * 99, "{}", growth.report);
    assert!(in_goroutine * 10 >= at_its_stack * 4, "{}", growth.report);
}
