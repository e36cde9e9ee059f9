//! Readers of reports that do not read, and terminals that vanish, neither stop probes nor fill memory.
//!
//! Terminals of the view are tested in `view.rs`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

use super::{MIB, RELEASE, check_spent};
use memleak_test::memleak::tracing;
use memleak_test::program::{Lines, PATIENCE, Program, compile, directory, signal};
use memleak_test::report::Report;
use memleak_test::terminal::{Session, Terminal};

/// Starts memleak with many reports, into a pipe that is not read.
fn reporting(pid: u32) -> (Child, Lines) {
    tracing(&["--format", "json", "-p", &pid.to_string(), "0.01"])
}

/// Waits until memleak can write no more: it sleeps in `write`.
fn await_stuck(pid: u32) {
    let began = Instant::now();
    let is_writing =
        || fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with("1 0x1 "));
    while !is_writing() {
        assert!(began.elapsed() < *PATIENCE, "it writes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Probes go on while the reader does not read, and memory does not grow with waiting output; when the reader
/// reads again, it gets everything that was counted.
#[test]
fn blocked_reader_stops_no_probe() {
    const BLOCKS: u64 = 300_000;
    let path = compile(&directory("abuse-reader"), "amounts/many_blocks.c", &RELEASE);
    let mut program = Program::start(&path, &[&BLOCKS.to_string()]);
    program.expect("ready");
    let (mut child, _messages) = reporting(program.pid());
    await_stuck(child.id());
    program.step("held");
    program.step("done");
    signal(child.id(), "INT");
    let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let last = stdout.lines().map(|line| line.expect("text")).last();
    assert!(child.wait().expect("a child of ours").success());
    let report = Report::parse(&last.expect("a report"));
    report.check_sums();
    assert_eq!(report.allocated().blocks + report.lost.blocks, BLOCKS, "{report}");
    check_spent("a reader stops reading", &report, 0.0, (160 * MIB, 0.0));
}

/// A second signal ends memleak though its output is not read.
#[test]
fn second_signal_ends_it_without_a_reader() {
    let path = compile(&directory("abuse-nobody"), "amounts/plain.c", &RELEASE);
    let program = Program::start(&path, &["10"]);
    program.expect("ready");
    let (mut child, _messages) = reporting(program.pid());
    await_stuck(child.id());
    signal(child.id(), "INT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().expect("a child of ours").is_none());
    signal(child.id(), "INT");
    assert_eq!(child.wait().expect("a child of ours").code(), Some(130));
}

/// The window is closed: the trace ends, and what goes to files is written. Output that can go nowhere
/// neither keeps memleak running nor makes it crash.
#[test]
fn closed_terminal_ends_the_trace() {
    let directory = directory("abuse-vanishes");
    let path = compile(&directory, "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["10"]);
    program.expect("ready");
    let pid = program.pid().to_string();
    program.step("done");
    for session in [Session::Own, Session::None] {
        let kept = directory.join(format!("{session:?}.json"));
        let to_file = ["--output", kept.to_str().expect("UTF-8"), "--format", "json"];
        for more in [&to_file[..], &[]] {
            let arguments = [&["-p", &pid, "0.2"], more].concat();
            let mut terminal = Terminal::start_in(session, &arguments, &[]);
            terminal.await_text("tracing ");
            if session == Session::None && !more.is_empty() {
                // A terminal outside its session does not signal it: it writes to its file, and is asked to
                // end like any other.
                signal(terminal.pid(), "TERM");
            }
            let status = terminal.hang_up();
            assert!(
                status == Some(0) || more.is_empty() && status == Some(2),
                "{session:?} {more:?}: {status:?}"
            );
        }
        let text = fs::read_to_string(&kept).expect("it was kept");
        let last = Report::parse(text.lines().last().expect("a report"));
        last.check_sums();
    }
}
