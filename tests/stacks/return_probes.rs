//! Return probes of another tool in the middle of stacks, where the kernel has replaced return addresses,
//! leave stacks as they are without.

use std::path::Path;

use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::Report;
use memleak_test::tracefs::ReturnProbe;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
/// Compiler flags that keep frame pointers, for walks by them.
const WITH_FP: [&str; 3] = ["-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];

fn trace(path: &Path, arguments: &[&str], flags: &[&str]) -> Report {
    let mut program = Program::start(path, arguments);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    report
}

/// A stack, independent of where the program was loaded: its end, and of each frame its name, address in the
/// file and how it was found.
type Shape = (String, Vec<(String, Option<u64>, String)>);

fn shapes(report: &Report) -> Vec<Shape> {
    let frame = |frame: &memleak_test::report::Frame| {
        let place = frame.module.as_ref().map(|_| frame.svma());
        (frame.name().to_owned(), place, frame.found_by.clone())
    };
    let stacks = report.stacks.iter();
    stacks
        .map(|stack| (stack.end.clone(), stack.frames.iter().map(frame).collect()))
        .collect()
}

/// Checks that the program has the same stacks with return probes on `probed` as without.
#[track_caller]
fn check(test: &str, source: &str, arguments: &[&str], probed: &[&str], (build, flags): (&[&str], &[&str])) {
    let path = compile(&directory(&format!("return_probes-{test}")), source, build);
    let without = trace(&path, arguments, flags);
    let probes: Vec<_> = probed
        .iter()
        .map(|symbol| ReturnProbe::attach(test, &path, symbol))
        .collect();
    let with = trace(&path, arguments, flags);
    assert_eq!(shapes(&with), shapes(&without), "{with}\n{without}");
    assert!(!with.stacks.is_empty());
    for (probe, symbol) in probes.iter().zip(probed) {
        assert!(probe.hits() > 0, "the probe on {symbol} was hit");
    }
}

/// Return probes on two functions, with the C library's between them.
#[test]
fn around_a_callback() {
    if lacks(Feature::Tracefs) {
        return;
    }
    check(
        "callback",
        "stacks/callback.c",
        &[],
        &["compare", "sort_numbers"],
        (&RELEASE, &[]),
    );
}

/// Sixty calls of one function on one stack, each with a return address that was replaced. (The kernel
/// replaces 64 on one thread, of which one is the allocator's.)
#[test]
fn in_recursion() {
    if lacks(Feature::Tracefs) {
        return;
    }
    check(
        "recursion",
        "stacks/recursion.c",
        &["60"],
        &["recurse"],
        (&RELEASE, &[]),
    );
}

/// Walks by frame pointers alone put return addresses back too.
#[test]
fn by_frame_pointers() {
    if lacks(Feature::Tracefs) {
        return;
    }
    check(
        "fp",
        "stacks/recursion.c",
        &["60"],
        &["recurse"],
        (&WITH_FP, &["--unwind", "fp"]),
    );
}

/// Walks in the programs of older kernels put return addresses back too.
#[test]
fn by_perf_probes() {
    if lacks(Feature::Tracefs) {
        return;
    }
    check(
        "perf",
        "stacks/recursion.c",
        &["60"],
        &["recurse"],
        (&RELEASE, &["--attach", "perf"]),
    );
}

/// Allocations of a thread that has as many return probes as it can have are lost, and counted as such.
#[test]
fn beyond_the_limit() {
    if lacks(Feature::Tracefs) {
        return;
    }
    for attach in ["session", "multi", "perf"] {
        let test = format!("return_probes-limit-{attach}");
        let path = compile(&directory(&test), "stacks/recursion.c", &RELEASE);
        let probe = ReturnProbe::attach(&format!("limit_{attach}"), &path, "recurse");
        let report = trace(&path, &["64"], &["--attach", attach]);
        assert_eq!(
            report.outstanding(),
            memleak_test::report::Amount::default(),
            "{report}"
        );
        assert_eq!((report.lost.blocks, report.lost.bytes), (1, 16), "{report}");
        assert_eq!(report.lost.causes["return_probe_limit"], 1, "{report}");
        drop(probe);
    }
}
