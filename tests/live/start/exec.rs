//! A program that a started one executes is stopped at its start like the first, so that its first
//! allocations are seen; for programs that others execute, the loss is reported.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::await_end;
use memleak_test::memleak::Memleak;
use memleak_test::program::{LIBRARIES, Program, compile, compile_as, directory, mimalloc, stock};
use memleak_test::report::{Amount, Report};
use memleak_test::started::Started;

/// Returns the setting of the environment that has a library loaded before others.
fn preloaded((library, package): (&str, &str)) -> String {
    let path = stock(&Path::new(LIBRARIES).join(library).to_string_lossy(), package);
    format!("LD_PRELOAD={}", path.display())
}

/// Compiles the program that executes others or leaks at once, with a loader and without.
fn chains(directory: &Path) -> [PathBuf; 2] {
    let fixed = directory.join("static");
    [
        compile(directory, "processes/chain.c", &["-O1", "-g"]),
        compile_as(&fixed, "processes/chain.c", &["-O1", "-g", "-static"]),
    ]
}

/// Checks that all that the last program of a chain leaks was seen.
#[track_caller]
fn check_all(report: &Report, command: &str) {
    report.check_sums();
    for (function, blocks, size) in [("early", 25, 40), ("late", 100, 24)] {
        let stack = report.only_through(function);
        let expected = Amount {
            blocks,
            bytes: blocks * size,
        };
        assert_eq!(stack.outstanding, expected, "{command}: {report}");
    }
    assert_eq!(report.lost.beginnings, 0, "{command}: {report}");
}

/// Chains of programs, the last of which leaks at once by an allocator that is in a file that the first has
/// not mapped.
#[test]
fn chains_of_programs() {
    let directory = directory("start-exec");
    let [chain, fixed] = chains(&directory);
    let [chain, fixed] = [chain.display(), fixed.display()];
    let [jemalloc, mimalloc] = [("libjemalloc.so.2", "libjemalloc2"), mimalloc()].map(preloaded);
    for (attach, command) in [
        ("perf", format!("env {jemalloc} {chain}")),
        ("session", format!("nice env {mimalloc} {chain}")),
        ("session", format!("sh -c 'exec {fixed}'")),
        ("session", format!("{fixed} env {jemalloc} {chain}")),
        (
            "multi",
            format!("{chain} {chain} /lib64/ld-linux-x86-64.so.2 {chain} {fixed}"),
        ),
    ] {
        let outcome = Started::start(&["--attach", attach, "-c", &command]).finish();
        assert_eq!(outcome.status, Some(0), "{command}: {:#?}", outcome.messages);
        check_all(outcome.report(), &command);
    }
}

/// A program that was executed by another notices nothing of its stops.
#[test]
fn an_executed_program_notices_nothing() {
    let program = compile(
        &directory("start-exec-noticed"),
        "processes/started.c",
        &super::RELEASE,
    );
    let mut started = Started::start(&["-c", &format!("sh -c 'exec env {}'", program.display())]);
    started.expect("traced 0 0, continued 0, user 0");
    started.send_line("");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
    super::check_allocations(outcome.report());
}

/// A program goes on whenever memleak is killed while it executes one after the other.
#[test]
fn executing_programs_outlive_a_killed_tracer() {
    let directory = directory("start-exec-killed");
    let [chain, _] = chains(&directory);
    for round in 0..6_u32 {
        let programs = format!("{} ", chain.display()).repeat(40);
        let command = format!("sh -c 'echo $$; exec {programs}'");
        let started = Started::start(&["-c", &command]);
        let pid = started.line().parse().expect("a pid");
        std::thread::sleep(Duration::from_millis(15) * round);
        started.kill();
        await_end(pid);
    }
}

/// Where a child, or a process that was running, executes a program with an allocator in a file that was not
/// mapped before, its first allocations are missed: a report says so, and a condition does not pass.
#[test]
fn the_loss_of_others_is_said() {
    let [_, fixed] = chains(&directory("start-exec-others"));
    let fixed = fixed.display();
    let command = format!("sh -c '{fixed}; true'");
    let outcome =
        Started::start(&["--follow-fork", "--fail-on", "outstanding>1GiB", "-c", &command]).finish();
    assert_eq!(outcome.report().lost.beginnings, 1, "{:#?}", outcome.messages);
    assert_eq!(outcome.status, Some(3), "{:#?}", outcome.messages);
    let mut program = Program::start(
        Path::new("/bin/sh"),
        &["-c", &format!("echo ready; read line; exec {fixed}")],
    );
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--format", "text"]);
    program.send_line("");
    let text = memleak.wait_for_text();
    let expected =
        "1 program executed by a traced process: allocations before its allocator had probes were not seen";
    assert!(text.contains(expected), "{text}");
}
