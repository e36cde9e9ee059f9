//! Code that comes and goes while it is traced: a walk never uses the table of code that is not there any more.
//! Needs root.
//!
//! Each claim is: every stack is the one that is truly possible there, or says that a table was not loaded.

mod common;

use std::path::{Path, PathBuf};

use common::memleak::Memleak;
use common::program::{Program, compile, compile_as, directory};
use common::report::{Report, Stack};

/// As distributions build: no frame pointers.
const RELEASE: [&str; 5] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-Wall",
    "-pthread",
];
const BELOW_MAIN: [&str; 3] = ["__libc_start_call_main", "__libc_start_main*", "_start"];
/// Room for the same stacks in a thousand epochs.
const ROOM: [&str; 2] = ["--stack-storage-size", "200000"];

/// `names`, then what is below `main`.
fn from_main<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().chain(&BELOW_MAIN).copied().collect()
}

/// Builds of `swap_library.c`: the same code at the same place, with frames of other sizes.
fn swap_library(directory: &Path, name: &str, slots: u32, more: &[&str]) -> PathBuf {
    let output = directory.join(format!("lib{name}.so"));
    let (name, slots) = (format!("-DX={name}"), format!("-DSLOTS={slots}"));
    let own = ["-shared", "-fPIC", &name, &slots];
    let flags: Vec<_> = RELEASE.iter().chain(&own).chain(more).copied().collect();
    compile_as(&output, "swap_library.c", &flags)
}

/// Where each stack of `swap.c` may come from, and nothing else.
struct Possible<'a> {
    exact: Vec<Vec<&'a str>>,
}

/// Blocks by what became of their stacks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shares {
    complete: u64,
    not_loaded: u64,
}

impl Possible<'_> {
    /// Checks every stack; returns the blocks of those that do not pass the thread that allocates all the time.
    #[track_caller]
    fn check(&self, report: &Report) -> Shares {
        let mut shares = Shares::default();
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
        let fits = |exact: &Vec<&str>| {
            let same = |(name, expected): (&&str, &&str)| match expected.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == expected,
            };
            (names.len() == exact.len() || (!whole && names.len() < exact.len()))
                && names.iter().zip(exact).all(same)
        };
        let loader = names.iter().any(|name| *name == "main" || *name == "round_of")
            && names
                .iter()
                .any(|name| name.starts_with("dl") || name.starts_with("_dl"))
            && whole;
        assert!(self.exact.iter().any(fits) || loader, "impossible:\n{stack}");
    }
}

/// Stacks of the libraries `a` and `b` of `swap.c`.
fn possible_swaps() -> Possible<'static> {
    let through = |inner, outer| from_main(&[inner, outer, "call_library", "round_of", "main"]);
    Possible {
        exact: vec![through("inner_a", "outer_a"), through("inner_b", "outer_b")],
    }
}

/// Runs `swap.c` over `rounds` rounds.
fn swap(test: &str, rounds: u64, more: &[&str], flags: &[&str]) -> Report {
    let directory = directory(&format!("live_mappings-{test}"));
    let libraries = [("a", 20), ("b", 50)].map(|(name, slots)| swap_library(&directory, name, slots, more));
    let path = compile(&directory, "swap.c", &RELEASE);
    let [first, second] = libraries.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let mut program = Program::start(&path, &[first, second, &rounds.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[&ROOM, flags].concat());
    program.tell("");
    program.expect(&rounds.to_string());
    let report = memleak.finish();
    report.check_sums();
    report
}

/// Two libraries alternate at the same address a thousand times while they and another thread allocate: no stack
/// is walked by the table of the other, and those that last are complete.
#[allow(clippy::print_stderr, reason = "what the test found")]
#[test]
fn libraries_at_the_same_address() {
    const ROUNDS: u64 = 1000;
    let report = swap("swap", ROUNDS, &[], &[]);
    let shares = possible_swaps().check(&report);
    let thread: Vec<_> = report.through("thread_main");
    for stack in &thread {
        assert_eq!(stack.end, "complete", "{stack}");
    }
    assert!(!thread.is_empty());
    let through = |name| {
        report
            .through(name)
            .iter()
            .map(|stack| stack.allocated.blocks)
            .sum::<u64>()
    };
    let (a, b) = (through("inner_a"), through("inner_b"));
    eprintln!(
        "{shares:?}; through inner_a {a}, inner_b {b} of {} blocks",
        20 * ROUNDS
    );
    assert!(a > 0 && b > 0, "{report}");
    // 20 blocks of each round, and one of the library's constructor.
    let constructors = through("init_a") + through("init_b");
    assert_eq!(a + b + constructors + shares.not_loaded, 21 * ROUNDS, "{report}");
}
