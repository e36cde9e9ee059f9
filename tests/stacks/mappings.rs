//! Code that comes and goes while it is traced is never walked by the table of code that is gone.
//!
//! Each claim is: every stack is the one that is truly possible there, or says that a table was not loaded.

use std::path::{Path, PathBuf};

use super::known::BELOW_THREAD;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, directory};
use memleak_test::report::{Report, Stack, from_main};

/// Compiler flags as distributions have them, without frame pointers.
const RELEASE: [&str; 5] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-Wall",
    "-pthread",
];
/// Room for the same stacks in a thousand epochs.
const ROOM: [&str; 2] = ["--stack-storage-size", "200000"];

/// Compiles a build of `swap_library.c`: all have the same code at the same place, with frames of other
/// sizes.
fn swap_library(directory: &Path, name: &str, slots: u32, more: &[&str]) -> PathBuf {
    let output = directory.join(format!("lib{name}.so"));
    let (name, slots) = (format!("-DX={name}"), format!("-DSLOTS={slots}"));
    let own = ["-shared", "-fPIC", &name, &slots];
    let flags: Vec<_> = RELEASE.iter().chain(&own).chain(more).copied().collect();
    compile_as(&output, "mappings/swap_library.c", &flags)
}

/// Stacks that `swap.c` can have; every stack must be one of them.
struct Possible<'a> {
    exact: Vec<Vec<&'a str>>,
}

/// Blocks by the end of their stacks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shares {
    complete: u64,
    not_loaded: u64,
}

impl Possible<'_> {
    /// Checks every stack, and that walks that ended for lack of a table are among those that user space
    /// could not finish. Returns the blocks of stacks outside the thread that allocates all the time.
    #[track_caller]
    fn check(&self, report: &Report) -> Shares {
        let mut shares = Shares::default();
        let not_loaded = report.unwinding.allocations.get("table_not_loaded").copied();
        let not_finished = report.unwinding.not_finished;
        assert!(not_loaded.unwrap_or(0) <= not_finished, "{report}");
        for stack in report.stacks.iter().filter(|stack| !stack.passes("thread_main")) {
            match stack.end.as_str() {
                "complete" => shares.complete += stack.allocated.blocks,
                "table_not_loaded" => shares.not_loaded += stack.allocated.blocks,
                other => panic!("ends by {other}:\n{stack}"),
            }
            self.check_stack(stack);
        }
        shares
    }

    #[track_caller]
    fn check_stack(&self, stack: &Stack) {
        let names = stack.names();
        let whole = stack.end == "complete";
        if whole && stack.passes("visitor_main") {
            let is_visit = |[inner, outer]: [&str; 2]| {
                let visit = [inner, outer, "call_library", "visitor_main"];
                stack.has_names(&[&visit[..], &BELOW_THREAD].concat())
            };
            let visits = [["inner_a", "outer_a"], ["inner_b", "outer_b"]];
            assert!(visits.into_iter().any(is_visit), "impossible:\n{stack}");
            return;
        }
        let fits = |exact: &Vec<&str>| {
            let same = |(name, expected): (&&str, &&str)| match expected.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == expected,
            };
            (names.len() == exact.len() || (!whole && names.len() < exact.len()))
                && names.iter().zip(exact).all(same)
        };
        let loading =
            |name: &&str| name.starts_with("dl") || name.starts_with("_dl") || *name == "copy_mappings";
        let loader = whole && names.contains(&"main") && names.iter().any(loading);
        assert!(self.exact.iter().any(fits) || loader, "impossible:\n{stack}");
    }
}

/// Returns stacks of the libraries `a` and `b` of `swap.c`.
fn possible_swaps() -> Possible<'static> {
    let through = |inner, outer| from_main(&[inner, outer, "call_library", "round_of", "main"]);
    Possible {
        exact: vec![through("inner_a", "outer_a"), through("inner_b", "outer_b")],
    }
}

/// Starts `remap.c` with its two libraries, and waits until it is ready.
fn start_remap(test: &str, mode: &str) -> Program {
    let directory = directory(&format!("mappings-{test}"));
    let libraries = [("a", 20), ("b", 50)].map(|(name, slots)| swap_library(&directory, name, slots, &[]));
    let path = compile(&directory, "mappings/remap.c", &RELEASE);
    let [first, second] = libraries.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let program = Program::start(&path, &[mode, first, second]);
    program.expect("ready");
    program
}

/// Checks a program that replaces code without its loader: stacks are first those of the old code, and then
/// those of the new.
#[track_caller]
#[allow(clippy::print_stderr, reason = "what the test found")]
fn check_replaced(test: &str, mode: &str, after: &[&str], symbol: &str) {
    let mut program = start_remap(test, mode);
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.1"]);
    let before = from_main(&["inner_a", "outer_a", "call_library", "main"]);
    let possible = Possible {
        exact: vec![before, from_main(after)],
    };
    follow_until_complete(&mut program, &memleak, &possible, "inner_a");
    program.send_line("swap");
    program.expect("done");
    follow_until_complete(&mut program, &memleak, &possible, symbol);
    let report = memleak.finish();
    let shares = possible.check(&report);
    eprintln!("{mode}: {shares:?}");
}

/// Lets the program allocate and reports, again and again, until a stack through `symbol` is complete. Every
/// stack on the way must be possible.
#[track_caller]
fn follow_until_complete(
    program: &mut Program,
    memleak: &Memleak,
    possible: &Possible<'_>,
    symbol: &str,
) -> u64 {
    let mut last = None;
    for asked in 1..200 {
        program.send_line("");
        program.expect("done");
        let report = memleak.report();
        possible.check(&report);
        if report.through(symbol).iter().any(|stack| stack.end == "complete") {
            return asked;
        }
        last = Some(report);
    }
    let report = last.expect("it was asked");
    panic!("never complete through {symbol}:\n{report}");
}

/// Runs `swap.c` over `rounds` rounds, then until each library has had its complete stack. Returns the last
/// report and how many blocks were allocated in the libraries.
#[track_caller]
#[allow(clippy::print_stderr, reason = "what the test measured")]
fn swap(test: &str, rounds: u64, more: &[&str], flags: &[&str]) -> (Report, u64) {
    let directory = directory(&format!("mappings-{test}"));
    let libraries = [("a", 20), ("b", 50)].map(|(name, slots)| swap_library(&directory, name, slots, more));
    let path = compile(&directory, "mappings/swap.c", &RELEASE);
    let [first, second] = libraries.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let mut program = Program::start(&path, &[first, second, &rounds.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(program.pid(), &[&ROOM[..], &["-v"], flags].concat(), &["0.5"]);
    program.send_line("");
    // Every library was where the first was.
    program.expect(&rounds.to_string());
    let visits: u64 = program.line().parse().expect("a number");
    let mut blocks = 21 * rounds + 2 + visits;
    let possible = possible_swaps();
    for symbol in ["inner_a", "inner_b"] {
        program.expect("done");
        blocks += follow_until_complete(&mut program, &memleak, &possible, symbol);
        program.send_line("next");
    }
    program.expect("done");
    let (report, messages) = memleak.finish_with_messages();
    let announced = messages
        .iter()
        .filter(|line| line.contains("after the loader announced it"));
    eprintln!("{test}: {:#?}", announced.collect::<Vec<_>>());
    report.check_sums();
    (report, blocks)
}

/// Checks two libraries that alternate at the same address while they and another thread allocate: no stack
/// is walked by the table of the other, and those that last are complete.
#[track_caller]
#[allow(clippy::print_stderr, reason = "what the test found")]
fn check_swaps(test: &str, rounds: u64, more: &[&str], flags: &[&str]) {
    let (report, in_libraries) = swap(test, rounds, more, flags);
    let shares = possible_swaps().check(&report);
    let thread = report.through("thread_main");
    for stack in &thread {
        assert_eq!(stack.end, "complete", "{stack}");
    }
    assert!(!thread.is_empty());
    let blocks = |name| -> u64 {
        let stacks = report.through(name).into_iter();
        stacks.map(|stack| stack.allocated.blocks).sum()
    };
    let names = ["inner_a", "inner_b", "init_a", "init_b"];
    let complete = names.map(blocks);
    eprintln!("{test}: {shares:?}; complete through {names:?}: {complete:?} of {in_libraries}");
    let complete: u64 = complete.iter().sum();
    assert_eq!(complete + shares.not_loaded, in_libraries, "{report}");
}

/// Libraries that replace one another at the same address, a thousand times, at any speed.
#[test]
fn libraries_at_the_same_address() {
    check_swaps("swap", 1000, &[], &[]);
}

/// Libraries that replace one another without build-ids, where their memory says too little and only the
/// loader's hook is exact.
#[test]
fn libraries_without_build_id() {
    check_swaps("no-build-id", 200, &["-Wl,--build-id=none"], &[]);
}

/// More walks than there is room for, while memleak is stopped: those that cannot be finished say so and are
/// counted, no amount is lost, and no stack is wrong.
#[test]
#[allow(clippy::print_stderr, reason = "what the test found")]
fn storm_of_libraries() {
    const ROUNDS: u64 = 1000;
    let directory = directory("mappings-storm");
    let libraries = [("a", 20), ("b", 50)].map(|(name, slots)| swap_library(&directory, name, slots, &[]));
    let path = compile(&directory, "mappings/swap.c", &RELEASE);
    let [first, second] = libraries.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let mut program = Program::start(&path, &[first, second, &ROUNDS.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &ROOM);
    memleak.signal("STOP");
    program.send_line("");
    program.expect(&ROUNDS.to_string());
    memleak.signal("CONT");
    let visits: u64 = program.line().parse().expect("a number");
    for _ in 0..2 {
        program.expect("done");
        program.send_line("next");
    }
    program.expect("done");
    let report = memleak.finish();
    report.check_sums();
    let shares = possible_swaps().check(&report);
    let unwinding = &report.unwinding;
    eprintln!("storm: {shares:?}, {} visits; {unwinding:?}", visits);
    // In the libraries, in their constructors, and by the loader that maps them.
    assert!(shares.complete + shares.not_loaded >= 21 * ROUNDS + visits);
    assert!(unwinding.finished_in_user_space > 100 && unwinding.not_finished > 0);
    assert_eq!(shares.not_loaded, unwinding.not_finished);
}

/// Libraries that replace one another with the hook and all probes on perf events.
#[test]
fn libraries_by_perf_probes() {
    check_swaps("perf", 200, &[], &["--attach", "perf"]);
}

/// A library is replaced by another, by `mmap` alone: no event reports it, and yet no stack is walked by the
/// old table.
#[test]
fn library_replaced_without_its_loader() {
    let after = ["inner_b", "outer_b", "call_library", "main"];
    check_replaced("remap", "library", &after, "inner_b");
}

/// A program writes code to where a library was: it is walked by its frame pointer, never by the library's
/// table.
#[test]
fn generated_code_where_a_library_was() {
    check_replaced("jit", "jit", &["allocate", "?", "call_jit", "main"], "call_jit");
}

/// Generated code at a new place: the stacks through it are complete, the first one, too.
#[test]
fn generated_code_at_a_new_place() {
    check_replaced(
        "new-jit",
        "new-jit",
        &["allocate", "?", "call_jit", "main"],
        "call_jit",
    );
}

/// Stacks through generated code at a new place are complete even after other stacks have led to unmapped
/// addresses, for which the mappings were read in vain.
#[test]
fn generated_code_after_readings_in_vain() {
    let mut program = start_remap("new-jit-in-vain", "new-jit");
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.1"]);
    let mut finished = Vec::new();
    // Until such walks are no longer sent to user space.
    while !finished.ends_with(&[finished.last().copied().unwrap_or(0); 4]) && finished.len() < 100 {
        program.send_line("nowhere");
        program.expect("done");
        finished.push(memleak.report().unwinding.finished_in_user_space);
    }
    program.send_line("swap");
    program.expect("done");
    let report = memleak.finish();
    let nowhere = report.through("call_nowhere");
    assert!(nowhere.iter().all(|stack| stack.end == "no_mapping"), "{report}");
    let [stack] = &report.through("call_jit")[..] else {
        panic!("one stack:\n{report}");
    };
    stack.check_names(&from_main(&["allocate", "?", "call_jit", "main"]));
    assert_eq!(stack.end, "complete", "{stack}");
    assert!(finished.last() < Some(&report.unwinding.finished_in_user_space));
}
