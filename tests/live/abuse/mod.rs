//! Abuse of memleak, which survives: hostile files, full disks, readers that do not read, clocks that are
//! set, processes that take another's pid, code that comes and goes.
//!
//! Each test prints the most memory that was taken, and the limit.

mod clocks;
mod disks;
mod elf;
mod files;
mod jvm;
mod processes;
mod readers;
mod tables;

use memleak_test::memleak::Memleak;
use memleak_test::report::Report;

const MIB: u64 = 1 << 20;

/// Compiler flags as distributions have them.
const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

/// Prints the cost of an abuse, and checks it against limits: memory by the report, and CPU time.
#[track_caller]
#[allow(clippy::print_stderr, reason = "what the test measured")]
fn check_spent(abuse: &str, report: &Report, seconds: f64, limits: (u64, f64)) {
    let peak = report.own.peak_bytes;
    eprintln!(
        "{abuse}: {} MiB resident at most (bound {}), {} MiB in the kernel, {seconds:.1} s of a processor (bound {})",
        peak / MIB,
        limits.0 / MIB,
        report.own.kernel_bytes / MIB,
        limits.1
    );
    assert!(peak <= limits.0, "{abuse}: {peak} bytes");
    assert!(seconds <= limits.1, "{abuse}: {seconds} s");
}

/// Ends a trace, and checks its cost against limits.
#[track_caller]
fn finish_within(abuse: &str, memleak: Memleak, limits: (u64, f64)) -> Report {
    // The report that is made now takes time last; tests that make reports wait for one more interval.
    let before = memleak.cpu_seconds();
    let report = memleak.finish();
    check_spent(abuse, &report, before, limits);
    report.check_sums();
    report
}
