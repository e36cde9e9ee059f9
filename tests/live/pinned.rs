//! Free memory is pinned by the stacks whose blocks lie in between (`--pinned`), as much as the program freed
//! around these blocks; what blocks from before the attach pin is told apart.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use memleak_test::fragmentation::Fragmentation;
use memleak_test::memleak::Memleak;
use memleak_test::program::{
    LIBRARIES, Program, compile, directory, end_if_only_compiled, require_root, stock,
};
use memleak_test::report::{Amount, Report};

/// Blocks that the program keeps, and bytes of the memory of those that it frees around each: in glibc's
/// chunks, 16 bytes of which 8 are the header.
const KEPT: u64 = 500;
const FREED: u64 = 31 * 1008;
/// Blocks that it keeps of those from before the attach.
const OLD: u64 = 100;

fn compiled(test: &str) -> PathBuf {
    let flags = ["-O1", "-fno-optimize-sibling-calls"];
    compile(&directory(&format!("pinned-{test}")), "growth/row.c", &flags)
}

/// Traces the program with `flags` from its first wait to its last.
#[track_caller]
fn traced(command: &mut Command, flags: &[&str]) -> Report {
    let mut program = Program::spawn(command);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("done");
    memleak.finish()
}

/// Free memory that the blocks of a function pin.
#[track_caller]
fn pinned_by(report: &Report, function: &str) -> Amount {
    let stack = report.only_through(function);
    stack.pinned.unwrap_or_else(|| panic!("{stack}"))
}

#[track_caller]
fn fragmentation(report: &Report) -> &Fragmentation {
    report.targets[0].fragmentation.as_ref().expect("asked for")
}

/// Checks that two numbers differ by at most so many per cent of the second.
#[track_caller]
fn check_near(name: &str, found: u64, expected: u64, percent: u64) {
    assert!(
        found.abs_diff(expected) * 100 <= expected * percent,
        "{name}: {found}, expected {expected}"
    );
}

/// 500 blocks of 500 kB in all pin 15.4 MiB of glibc's memory. 100 older ones pin 3.1 MiB, which is told
/// apart.
#[test]
fn a_row_of_glibc() {
    let path = compiled("glibc");
    let report = traced(&mut Command::new(&path), &["--sort", "pinned"]);
    let pinned = pinned_by(&report, "keep_new");
    check_near("blocks", pinned.blocks, KEPT, 1);
    check_near("pinned", pinned.bytes, KEPT * FREED, 5);
    let found = fragmentation(&report);
    check_near(
        "by others",
        found.pinned_by_others.expect("known"),
        OLD * FREED,
        5,
    );
    let all = found.pinned.expect("known") - found.pinned_by_own.expect("known");
    let by_stacks: u64 = report
        .stacks
        .iter()
        .filter_map(|stack| stack.pinned)
        .map(|pinned| pinned.bytes)
        .sum();
    assert_eq!(all, by_stacks + found.pinned_by_others.expect("known"));
    let names: Vec<_> = found
        .allocators
        .iter()
        .map(|allocator| allocator.name.as_str())
        .collect();
    assert_eq!(names, ["glibc"]);
}

/// In jemalloc, each of 500 blocks pins the three others of its slab of 4 KiB.
#[test]
fn a_row_of_jemalloc() {
    let library = stock(&format!("{LIBRARIES}/libjemalloc.so.2"), "libjemalloc2");
    let path = compiled("jemalloc");
    let mut command = Command::new(&path);
    let report = traced(command.env("LD_PRELOAD", library), &["--pinned"]);
    let pinned = pinned_by(&report, "keep_new");
    check_near("blocks", pinned.blocks, KEPT, 5);
    check_near("pinned", pinned.bytes, KEPT * 3 * 1024, 5);
    let found = fragmentation(&report);
    let jemalloc = found
        .allocators
        .iter()
        .find(|allocator| allocator.name == "jemalloc");
    let all = jemalloc.unwrap_or_else(|| panic!("{found:?}")).pinned;
    assert!(all > pinned.bytes, "{found:?}");
}

/// With sampling, the recorded blocks stand for all. A program that memleak starts is read at its end.
#[test]
fn an_estimate_at_the_end() {
    end_if_only_compiled();
    require_root();
    let path = compiled("end");
    let ended = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["--pinned", "--sample-rate", "4", "--format", "json", "--"])
        .arg(&path)
        .arg("alone")
        .stdin(Stdio::null())
        .output()
        .expect("memleak was built");
    let (said, errors) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    assert!(ended.status.success(), "{errors}");
    let report = Report::parse(said.lines().last().unwrap_or_else(|| panic!("{errors}")));
    let by_old = pinned_by(&report, "keep_old");
    let by_new = pinned_by(&report, "keep_new");
    // Of 500 blocks that are each recorded with a probability of a quarter, the standard error is 8 %.
    check_near("blocks", by_new.blocks, KEPT, 40);
    check_near("pinned", by_new.bytes, by_new.blocks * FREED, 5);
    check_near("pinned by old ones", by_old.bytes, by_old.blocks * FREED, 5);
    assert_ne!(by_new.blocks, KEPT, "an estimate");
    assert!(by_old.blocks > OLD / 4, "{by_old:?}");
    let all = fragmentation(&report).pinned.expect("known");
    check_near("in all", all, (KEPT + OLD) * FREED, 5);
}
