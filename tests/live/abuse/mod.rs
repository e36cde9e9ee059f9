//! Abuse of memleak, which lives: files that are made to hurt, disks that are full, readers that do not read, clocks
//! that are set, processes that take another's number, code that comes and goes.
//!
//! Each test says what memory was taken at most, and the bound that it is held to.

mod clocks;
mod disks;
mod elf;
mod files;
mod jvm;
mod processes;
mod readers;
mod tables;

use crate::common::memleak::Memleak;
use crate::common::report::Report;

const MIB: u64 = 1 << 20;

/// Compiler flags as distributions have them.
const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

/// Says what an abuse took and holds it to its bounds: memory as the report has it, and time of a processor.
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

/// Ends a trace and holds what it took to bounds.
#[track_caller]
fn finish_within(abuse: &str, memleak: Memleak, limits: (u64, f64)) -> Report {
    // The report that is made now is the last thing that takes time; one more interval is waited for by those that make
    // reports.
    let before = memleak.cpu_seconds();
    let report = memleak.finish();
    check_spent(abuse, &report, before, limits);
    report.check_sums();
    report
}
