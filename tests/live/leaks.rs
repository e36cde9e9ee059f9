//! Amounts: for each allocation function exactly the blocks and bytes that it was asked for and that are
//! left. Every program stands still while probes are attached and while the report is made.

use std::fs;
use std::path::Path;
use std::thread;

use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::profiles;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Report, Stack};

const RELEASE: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];

const NOTHING: Amount = Amount { bytes: 0, blocks: 0 };

/// Compiles `source`, starts it and traces it from its "ready" to its "done".
#[track_caller]
fn trace(test: &str, source: &str, arguments: &[&str], memleak_flags: &[&str]) -> Report {
    let path = compile(&directory(&format!("leaks-{test}")), source, &RELEASE);
    let mut program = Program::start(&path, arguments);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), memleak_flags);
    program.step("done");
    let report = memleak.finish();
    assert!(program.end().success(), "{source} is none the worse for it");
    report.check_sums();
    report
}

/// A trace ends by itself after its time, with a report, whatever the interval; the program goes on.
#[test]
fn duration() {
    let path = compile(&directory("leaks-duration"), "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["1"]);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(program.pid(), &["--duration", "1500ms"], &["1m"]);
    let report = memleak.last_report();
    let seconds = report.duration_ns as f64 / 1e9;
    assert!((1.5..30.0).contains(&seconds), "{seconds}");
    program.step("done");
}

/// Expectation of a site.
enum Left {
    Kept,
    Freed,
}
use Left::{Freed, Kept};

/// A function of the program, the allocator function it calls, the size it asks for, and what is left of it.
type Row = (&'static str, &'static str, u64, Left);

/// Checks that each row is one stack with one block of just that size.
#[track_caller]
fn check_rows(report: &Report, rows: &[Row]) {
    for (site, allocator, bytes, left) in rows {
        let stack = report.only_through(site);
        let one = Amount {
            bytes: *bytes,
            blocks: 1,
        };
        let outstanding = match left {
            Kept => one,
            Freed => NOTHING,
        };
        assert_eq!(
            (stack.allocator.as_str(), stack.allocated, stack.outstanding),
            (name_of(allocator), one, outstanding),
            "{site}:\n{stack}"
        );
        assert_eq!(stack.end, "complete", "{stack}");
    }
}

/// Name of a function in reports: of several that are the same code, the table's first. glibc before 2.38 has
/// `memalign` and `aligned_alloc` as one.
fn name_of(function: &str) -> &str {
    let is_same = libc::memalign as *const () == libc::aligned_alloc as *const ();
    match function {
        "memalign" if is_same => "aligned_alloc",
        _ => function,
    }
}

const MIB: u64 = 1 << 20;

/// Each way that the functions of `calls.c` can succeed.
#[rustfmt::skip]
const CALLS: &[Row] = &[
    ("malloc_kept", "malloc", 1001, Kept),
    ("malloc_freed", "malloc", 1002, Freed),
    ("malloc_large_kept", "malloc", 3 * MIB, Kept),
    ("malloc_large_freed", "malloc", 3 * MIB, Freed),
    ("malloc_zero_kept", "malloc", 0, Kept),
    ("calloc_kept", "calloc", 77, Kept),
    ("calloc_freed", "calloc", 84, Freed),
    ("realloc_null_kept", "realloc", 1003, Kept),
    ("realloc_null_freed", "realloc", 1004, Freed),
    // The call failed, so the old block lives.
    ("realloc_failed_old", "malloc", 1005, Kept),
    ("realloc_zero_old", "malloc", 1006, Freed),
    ("realloc_shrunk_old", "malloc", 5000, Freed),
    ("realloc_shrunk", "realloc", 1007, Kept),
    ("realloc_moved_old", "malloc", 100, Freed),
    ("realloc_barrier", "malloc", 24, Kept),
    ("realloc_moved", "realloc", 1008, Kept),
    ("realloc_large_old", "malloc", 3 * MIB, Freed),
    ("realloc_large", "realloc", 6 * MIB, Kept),
    ("reallocarray_kept", "reallocarray", 65, Kept),
    ("reallocarray_freed", "reallocarray", 70, Freed),
    ("reallocarray_old", "malloc", 1009, Kept),
    ("aligned_alloc_kept", "aligned_alloc", 1024, Kept),
    ("aligned_alloc_freed", "aligned_alloc", 1088, Freed),
    ("memalign_kept", "memalign", 1010, Kept),
    ("memalign_freed", "memalign", 1011, Freed),
    ("valloc_kept", "valloc", 1012, Kept),
    ("valloc_freed", "valloc", 1013, Freed),
    ("pvalloc_kept", "pvalloc", 1014, Kept),
    ("pvalloc_freed", "pvalloc", 1015, Freed),
    ("posix_memalign_kept", "posix_memalign", 1016, Kept),
    ("posix_memalign_freed", "posix_memalign", 1017, Freed),
    // Two failed calls were given the pointer to this block.
    ("posix_memalign_old", "malloc", 1018, Kept),
    ("realloc_unseen", "realloc", 1019, Kept),
];

/// Calls that fail: nothing is recorded for them but their number.
const FAILING: &[&str] = &[
    "malloc_failed",
    "calloc_overflow",
    "realloc_failed",
    "reallocarray_overflow",
    "posix_memalign_invalid",
    "posix_memalign_huge",
];

/// Calls that allocate nothing and are no failures. All but the last free a block that was never seen, as
/// `realloc_unseen` does.
const FREEING: &[&str] = &[
    "free_unseen",
    "realloc_unseen_to_zero",
    "realloc_zero",
    "free_null",
];

#[track_caller]
fn check_calls(test: &str, memleak_flags: &[&str]) {
    let report = trace(test, "allocators/calls.c", &[], memleak_flags);
    check_rows(&report, CALLS);
    for site in FAILING.iter().chain(FREEING) {
        assert!(report.through(site).is_empty(), "{site}:\n{report}");
    }
    assert_eq!(report.stacks.len(), CALLS.len(), "nothing else:\n{report}");
    assert_eq!(report.events.failed, FAILING.len() as u64, "{report}");
    assert_eq!(report.events.unknown_frees, 3, "{report}");
    assert_eq!(report.events.own_unknown_frees, 0, "{report}");
    assert_eq!(report.lost.blocks, 0, "{report}");
}

/// Every function, succeeding, failing, freed and kept: one record each, of the size asked for.
#[test]
fn every_function() {
    check_calls("calls", &[]);
}

/// Checks that heaptrack finds each stack's bytes and calls, nothing temporary, and no higher peak than what
/// is outstanding.
#[track_caller]
fn check_heaptrack(file: &Path, report: &Report) {
    let total = |stacks: &[(String, u64)]| stacks.iter().map(|(_, amount)| amount).sum::<u64>();
    let [leaked, calls, temporary, peak] =
        ["leaked", "allocations", "temporary", "peak"].map(|cost| profiles::heaptrack(file, cost));
    let sums = [total(&leaked), total(&calls), total(&temporary), total(&peak)];
    let (outstanding, allocated) = (report.outstanding.bytes, report.allocated.blocks);
    assert_eq!(sums, [outstanding, allocated, 0, outstanding]);
    let largest = leaked.iter().max_by_key(|(_, amount)| amount).expect("a stack");
    let known = report
        .stacks
        .iter()
        .max_by_key(|stack| stack.outstanding.bytes)
        .expect("a stack");
    assert_eq!(largest.1, known.outstanding.bytes, "{leaked:?}");
    let kept = leaked
        .iter()
        .find(|(_, amount)| *amount == 1001)
        .expect("malloc_kept's block");
    assert!(
        kept.0.contains(";main (calls.c);malloc_kept (calls.c)"),
        "{kept:?}"
    );
    let of_kept = calls
        .iter()
        .find(|(stack, _)| *stack == kept.0)
        .expect("its calls");
    assert_eq!(
        of_kept.1,
        report
            .through("malloc_kept")
            .iter()
            .map(|stack| stack.allocated.blocks)
            .sum::<u64>()
    );
    // Inlined functions are within their callers.
    let text = profiles::heaptrack_leaks(file);
    let (_, callers) = text.split_once("\nmalloc_kept\n").expect("its leak");
    let (_, callers) = callers.split_once(" from:\n").expect("its callers");
    let functions = callers
        .lines()
        .filter(|line| line.starts_with("    ") && !line.starts_with("      "));
    let functions: Vec<_> = functions.map(str::trim).take(3).collect();
    assert_eq!(functions, ["run_all", "main", "__libc_start_call_main"], "{text}");
}

/// Pictures and profiles of one process, traced by all of them at once: programs that are not ours read them,
/// and find the totals of the JSON report in them.
#[test]
fn every_format() {
    let directory = directory("leaks-formats");
    let path = compile(
        &directory,
        "allocators/calls.c",
        &[&RELEASE[..], &["-g"]].concat(),
    );
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let files = [
        "leaks.pb.gz",
        "leaks.folded",
        "leaks.svg",
        "leaks.speedscope.json",
        "leaks.heap",
        "leaks.heaptrack.gz",
    ]
    .map(|name| directory.join(name));
    let pid = program.pid();
    let attach = |output: &[&str]| Memleak::attach(pid, &[&["-o", "0"], output].concat());
    let (writers, json) = thread::scope(|scope| {
        let outputs = files.iter().map(|file| file.to_str().expect("UTF-8"));
        let writers: Vec<_> = outputs
            .map(|file| scope.spawn(move || attach(&["--output", file])))
            .collect();
        let json = attach(&[]);
        let writers = writers
            .into_iter()
            .map(|writer| writer.join().expect("it attaches"));
        (writers.collect::<Vec<_>>(), json)
    });
    program.step("done");
    writers.iter().chain([&json]).for_each(Memleak::interrupt);
    for writer in writers {
        assert_eq!(writer.wait_for_text(), "", "nothing goes to standard output");
    }
    let report = json.last_report();
    assert!(program.end().success());
    let [pprof, folded, svg, speedscope, gperftools, heaptrack] = files;
    let (allocated, outstanding) = (&report.allocated, &report.outstanding);
    assert_eq!(
        profiles::pprof_totals(&pprof)[2..],
        [
            allocated.blocks,
            allocated.bytes,
            outstanding.blocks,
            outstanding.bytes
        ]
    );
    // Names that pprof finds in the files by addresses alone are ours.
    for symbolize in ["none", "force"] {
        let arguments = format!("-symbolize={symbolize} -top -unit=B -lines -nodefraction=0");
        let top = profiles::pprof(&pprof, &arguments);
        let line = top
            .lines()
            .find(|line| line.contains("malloc_kept"))
            .expect("a line");
        assert!(line.trim_start().starts_with("1001B"), "{line}");
        assert!(line.contains("calls.c:"), "{line}");
    }
    let lines = fs::read_to_string(folded).expect("UTF-8");
    assert_eq!(profiles::folded_total(&lines), outstanding.bytes);
    assert!(
        lines.lines().any(|line| line.ends_with(";malloc_kept 1001")),
        "{lines}"
    );
    assert_eq!(profiles::svg_total(&svg), outstanding.bytes);
    assert_eq!(
        profiles::speedscope_totals(&speedscope),
        [outstanding.bytes, outstanding.blocks, allocated.bytes]
    );
    check_heaptrack(&heaptrack, &report);
    check_heap_profiles(&gperftools, &report);
}

/// Checks that profiles in the format of gperftools have the totals of a report, by pprof.
fn check_heap_profiles(path: &Path, report: &Report) {
    let (allocated, outstanding) = (&report.allocated, &report.outstanding);
    let [blocks, bytes] = [outstanding.blocks, outstanding.bytes];
    for profile in profiles::heap_profiles(path) {
        assert_eq!(profile.totals, [blocks, bytes, allocated.blocks, allocated.bytes]);
        // A function's own bytes are in the first column, with those of what it calls in the fourth.
        let row = |name: &str| {
            let mut rows = profile
                .top
                .lines()
                .map(|row| row.split_whitespace().collect::<Vec<_>>());
            rows.find(|row| row.last() == Some(&name)).expect("a row")
        };
        assert_eq!(row("malloc_kept")[0], "1001", "{}", profile.top);
        assert_eq!(row("main")[3], bytes.to_string(), "{}", profile.top);
    }
}

/// Every function by separate entry and return probes.
#[test]
fn every_function_by_multi_probes() {
    check_calls("calls-multi", &["--attach", "multi"]);
}

/// Every function by one perf event per probe.
#[test]
fn every_function_by_perf_probes() {
    check_calls("calls-perf", &["--attach", "perf"]);
}

/// Forms of operator new. They call a C allocation function below, which is where they are seen.
const NEW: &[Row] = &[
    ("new_kept", "malloc", 1, Kept),
    ("new_freed", "malloc", 8, Freed),
    ("array_kept", "malloc", 40, Kept),
    ("array_freed", "malloc", 44, Freed),
    ("nothrow_kept", "malloc", 48, Kept),
    ("nothrow_freed", "malloc", 52, Freed),
    // Whichever libstdc++ was built with.
    ("aligned_kept", "aligned_alloc|posix_memalign", 192, Kept),
    ("aligned_freed", "aligned_alloc|posix_memalign", 192, Freed),
    ("aligned_array_freed", "aligned_alloc|posix_memalign", 384, Freed),
];

/// operator new in its forms is one record each; one that throws `bad_alloc` leaves nothing, and is caught.
#[test]
fn operator_new() {
    let report = trace("new", "allocators/operator_new.cpp", &[], &[]);
    let has = |site: &str| -> Vec<&Stack> {
        let named = |stack: &&Stack| stack.names().iter().any(|name| *name == format!("{site}()"));
        report.stacks.iter().filter(named).collect()
    };
    for (site, allocator, bytes, left) in NEW {
        let [stack] = has(site)[..] else {
            panic!("not one stack through {site}:\n{report}")
        };
        let one = Amount {
            bytes: *bytes,
            blocks: 1,
        };
        assert!(
            allocator.split('|').any(|name| name == stack.allocator),
            "{stack}"
        );
        assert_eq!(stack.allocated, one, "{stack}");
        let kept = if matches!(left, Kept) { one } else { NOTHING };
        assert_eq!(stack.outstanding, kept, "{stack}");
    }
    for site in ["nothrow_failed", "throwing", "throwing_aligned"] {
        for stack in has(site) {
            assert!(stack.passes("__cxa_allocate_exception"), "{stack}");
            assert_eq!(stack.outstanding, NOTHING, "{stack}");
        }
    }
    assert_eq!(report.events.failed, 3, "{report}");
    assert_eq!(
        report.unwinding.stacks["complete"],
        report.stacks.len() as u64,
        "{report}"
    );
}

/// The leaker says how many blocks it leaked while it stands still; the report says the same, to the block.
#[test]
fn leaker_is_counted_exactly() {
    for attach in attach_paths() {
        let directory = directory(&format!("leaks-leaker-{attach}"));
        let path = compile(&directory, "amounts/leaker.cpp", &RELEASE);
        let mut leaker = Program::start(&path, &["0", "50"]);
        let before = pause(&mut leaker);
        let memleak = Memleak::attach_reporting(leaker.pid(), &["--attach", attach], &["0.3"]);
        leaker.send_line("");
        // Attached, it leaks until the second report.
        memleak.report();
        memleak.report();
        let after = pause(&mut leaker);
        let report = memleak.finish();
        let leaked = Amount {
            bytes: 40 * (after - before),
            blocks: after - before,
        };
        assert!(leaked.blocks > 100, "{attach}: it leaks: {leaked:?}");
        let stack = report.only_through("LeakLib::slowMemoryLeak()");
        assert_eq!(
            (stack.outstanding, stack.allocated),
            (leaked, leaked),
            "{attach}:\n{report}"
        );
        assert_eq!(report.outstanding(), leaked, "{attach}:\n{report}");
        assert_eq!(report.lost.blocks, 0);
    }
}

/// Makes the leaker stand still; returns how many blocks it has leaked.
#[track_caller]
fn pause(leaker: &mut Program) -> u64 {
    leaker.send_line("");
    leaker.line().parse().expect("a number")
}

/// Checks threads that allocate and free all at once, half of it one another's blocks: all of it is seen,
/// nothing is left, nothing is lost, no free is unknown.
#[track_caller]
fn check_churn(threads: u64, rounds: u64) {
    let arguments = [threads.to_string(), rounds.to_string()];
    let report = trace(
        &format!("churn-{threads}"),
        "load/churn.c",
        &[&arguments[0], &arguments[1]],
        &[],
    );
    let stack = report.only_through("allocate");
    assert_eq!(stack.allocated.blocks, threads * rounds, "{report}");
    let bytes: u64 = (0..rounds).map(|round| 1 + round % 300).sum();
    assert_eq!(stack.allocated.bytes, threads * bytes, "{report}");
    assert_eq!(report.outstanding(), NOTHING, "{report}");
    assert_eq!(
        (report.lost.blocks, report.events.unknown_frees),
        (0, 0),
        "{report}"
    );
}

/// Two threads, 100,000 blocks each.
#[test]
fn two_threads() {
    check_churn(2, 100_000);
}

/// 30 threads, more than there are processors.
#[test]
fn thirty_threads() {
    check_churn(30, 7000);
}

/// A child's frees are of its own copies: its parent's blocks stay, and what the child allocates is not its
/// parent's.
#[test]
fn fork() {
    for attach in attach_paths() {
        let report = trace(
            &format!("fork-{attach}"),
            "processes/fork.c",
            &[],
            &["--attach", attach],
        );
        let all = Amount {
            bytes: 3200,
            blocks: 100,
        };
        let stack = report.only_through("allocate_all");
        assert_eq!(
            (stack.allocated, stack.outstanding),
            (all, all),
            "{attach}: {report}"
        );
        assert!(report.through("in_child").is_empty(), "{attach}: {report}");
        assert_eq!(report.events.unknown_frees, 0, "{attach}: {report}");
    }
}

/// The exit of the target has memleak make a last report, with names, and end well.
#[test]
fn target_exits() {
    let path = compile(&directory("leaks-exit"), "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["20"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    assert!(program.end().success());
    let report = memleak.last_report();
    report.check_sums();
    for site in ["even", "odd"] {
        let stack = report.only_through(site);
        assert_eq!(stack.outstanding.blocks, 10, "{report}");
        assert_eq!(stack.names()[..3], ["leak", site, "main"], "{report}");
    }
}

/// The death of the target by SIGKILL has memleak make a last report and end well.
#[test]
fn target_is_killed() {
    let path = compile(&directory("leaks-killed"), "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["20"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    program.signal("KILL");
    program.end();
    let report = memleak.last_report();
    assert_eq!(report.outstanding().blocks, 20, "{report}");
}

/// With room for 10 blocks, 90 of 100 are lost, and the report says so in blocks and bytes.
#[test]
fn block_table_full() {
    let report = trace("blocks", "amounts/plain.c", &["100"], &["--max-blocks", "10"]);
    assert_eq!(report.events.allocations, 100, "{report}");
    assert_eq!(report.lost.blocks + report.allocated().blocks, 100, "{report}");
    assert_eq!(report.lost.bytes + report.allocated().bytes, 2400, "{report}");
    assert_eq!(report.outstanding(), report.allocated(), "{report}");
    assert_eq!(
        report.lost.causes["block_table_full"], report.lost.blocks,
        "{report}"
    );
    assert!(report.lost.blocks > 0, "{report}");
    assert_eq!(
        report.outstanding().blocks,
        10,
        "the room that was asked for:\n{report}"
    );
}

/// With room for one stack, the blocks of the other are counted without their frames, which the report says.
#[test]
fn stack_table_full() {
    let report = trace(
        "stacks",
        "amounts/plain.c",
        &["100"],
        &["--stack-storage-size", "1"],
    );
    assert_eq!(report.lost.blocks, 0, "{report}");
    let [whole, bare] = ["even", ""].map(|site| {
        let of = |stack: &&Stack| {
            if site.is_empty() {
                stack.frames.is_empty()
            } else {
                stack.passes(site)
            }
        };
        let found: Vec<_> = report.stacks.iter().filter(of).collect();
        assert_eq!(found.len(), 1, "{report}");
        found[0]
    });
    for stack in [whole, bare] {
        assert_eq!(
            (stack.outstanding.blocks, stack.outstanding.bytes),
            (50, 1200),
            "{report}"
        );
    }
    assert_eq!(
        (whole.end.as_str(), bare.end.as_str()),
        ("complete", "stack_table_full")
    );
    assert_eq!(report.unwinding.allocations["stack_table_full"], 50, "{report}");
}

/// Probes that another tool has on every process do not change what memleak reads from files, and so not
/// where it probes.
#[test]
fn others_probe_every_process() {
    let directory = directory("leaks-others");
    let path = compile(&directory, "amounts/plain.c", &["-O2", "-fomit-frame-pointer"]);
    let start = || {
        let program = Program::start(&path, &["50"]);
        program.expect("ready");
        program
    };
    let (first, mut second) = (start(), start());
    let _everywhere = Memleak::attach(first.pid(), &["--follow-fork"]);
    let memleak = Memleak::attach(second.pid(), &[]);
    second.step("done");
    let report = memleak.finish();
    let by_malloc = report.stacks.iter().filter(|stack| stack.allocator == "malloc");
    let blocks: u64 = by_malloc.map(|stack| stack.allocated.blocks).sum();
    assert!(blocks >= 50, "{report}");
}
