//! The wall clock is set while memleak runs: labels have the new time, and nothing else depends on it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use super::RELEASE;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, stock};

const YEAR: f64 = 365.0 * 86_400.0;

/// Sets the clock of programs that read this file. Atomically, as they may read at any time.
fn set_clock(file: &Path, offset: &str) {
    let new = file.with_extension("new");
    fs::write(&new, offset).expect("our own directory");
    fs::rename(new, file).expect("our own directory");
}

/// The clock goes ten years back, and then twenty on: intervals, durations, ages, and what is computed from a
/// recording are as if nothing had happened; times of day are the new clock's.
#[test]
fn clock_changes_do_not_affect_times() {
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
    let library = stock(library, "faketime");
    let directory = directory("abuse-clock");
    let path = compile(&directory, "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["1000"]);
    program.expect("ready");
    let (clock, recording) = (directory.join("clock"), directory.join("trace.mlr"));
    set_clock(&clock, "+0");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command
        .env("LD_PRELOAD", &library)
        .env("FAKETIME_TIMESTAMP_FILE", &clock)
        .env("FAKETIME_NO_CACHE", "1")
        // Clocks that count from the start of the machine cannot be set.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("DONT_FAKE_MONOTONIC", "1");
    let began = Instant::now();
    let recording = recording.to_str().expect("UTF-8");
    let flags = ["--format", "json", "--record", recording, "-o", "100"];
    let memleak = Memleak::attach_reporting_by(command, program.pid(), &flags, &["0.2"]);
    program.step("done");
    let mut durations = Vec::new();
    for offset in ["+0", "-10y", "+10y"] {
        set_clock(&clock, offset);
        for _ in 0..3 {
            let report = memleak.report();
            durations.push(report.duration_ns);
            let elapsed = began.elapsed().as_nanos();
            assert!(u128::from(report.duration_ns) <= elapsed, "{offset}: {report}");
        }
    }
    let (mut reports, _) = memleak.finish_with_all_reports();
    let last = reports.pop().expect("a report");
    durations.push(last.duration_ns);
    // The intervals are waited for, and not ten years. On a busy machine a report can be late, and the next
    // one on time.
    let by_two: Vec<_> = durations[..9]
        .windows(3)
        .map(|three| three[2].saturating_sub(three[0]))
        .collect();
    assert!(
        by_two.iter().all(|&intervals| intervals > 250_000_000),
        "{by_two:?} {durations:?}"
    );
    // Blocks from before the clock was set are old, and nothing else happened to them.
    assert_eq!(last.only_through("even").outstanding.blocks, 500, "{last}");

    let trend = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["trend", "--format", "json", recording])
        .output()
        .expect("memleak was built");
    let trend: Value = serde_json::from_slice(&trend.stdout).expect("JSON");
    let of_points = |field: &str| -> Vec<f64> {
        let points = trend["points"].as_array().expect("points").iter();
        points
            .map(|point| point[field].as_f64().expect("a number"))
            .collect()
    };
    let (times, minutes) = (of_points("unix_ns"), of_points("minutes"));
    let steps: Vec<_> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / 1e9 / YEAR)
        .collect();
    assert!(
        steps.iter().any(|&step| step < -9.0) && steps.iter().any(|&step| step > 19.0),
        "the clock was set: {steps:?}"
    );
    let elapsed = began.elapsed().as_secs_f64() / 60.0;
    assert!(
        minutes.windows(2).all(|pair| pair[0] < pair[1]) && minutes.iter().all(|&minute| minute <= elapsed),
        "{minutes:?}"
    );
}
