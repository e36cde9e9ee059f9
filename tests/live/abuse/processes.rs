//! Processes that take another's pid, and code that comes and goes as fast as it can, are not mistaken for
//! others.

use std::process::Command;

use super::{MIB, RELEASE, finish_within};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, directory};

/// A pid that is used again while memleak does not look is not taken for the traced process. None of its
/// blocks is shown, and the trace ends, since its process has.
#[test]
fn reused_pid_is_not_the_target() {
    let path = compile(&directory("abuse-reuse"), "processes/reuse.c", &RELEASE);
    for flags in [&[][..], &["--follow-fork"], &["--attach", "perf"]] {
        let mut program = Program::start(&path, &[]);
        let pid = program.line().parse().expect("a pid");
        let memleak = Memleak::attach(pid, flags);
        program.step("first");
        memleak.signal("STOP");
        program.step("second");
        memleak.signal("CONT");
        let report = memleak.last_report();
        assert_eq!(report.only_through("first_life").allocated.blocks, 10, "{report}");
        assert!(report.through("second_life").is_empty(), "{report}");
        assert_eq!(report.events.allocations, 10, "{report}");
        let [target] = &report.targets[..] else {
            panic!("one target: {:?}", report.targets)
        };
        assert_eq!(
            (target.pid, target.ended.as_deref()),
            (pid, Some("exited")),
            "{flags:?}"
        );
        program.send_line("");
        assert!(program.await_end().success());
    }
}

/// Threads load and unload libraries, map and unmap their own code, and map files that are new each time, and
/// allocate through that code all the while. Each block is shown or lost, stacks are true or say why they
/// end, and neither memory nor open files grow with their number.
#[test]
fn churn_of_libraries_and_code() {
    let full = std::env::var_os("MEMLEAK_FULL_LOAD").is_some();
    let (rounds, files) = if full { (20_000, 4000) } else { (400, 300) };
    let directory = directory("abuse-storm");
    let library = directory.join("libstorm.so");
    let flags = [
        "-O2",
        "-shared",
        "-fPIC",
        "-DLIBRARY",
        "-fno-optimize-sibling-calls",
    ];
    compile_as(&library, "mappings/storm.c", &flags);
    let flags = [&RELEASE[..], &["-fno-optimize-sibling-calls"]].concat();
    let path = compile(&directory, "mappings/storm.c", &flags);
    let library = library.to_str().expect("UTF-8");
    let mut program = Program::start(&path, &[library, &rounds.to_string(), &files.to_string()]);
    program.expect("ready");
    // Fewer files can be open than the program maps.
    let mut command = Command::new("prlimit");
    let most_open = 256;
    command.args([&format!("--nofile={most_open}"), env!("CARGO_BIN_EXE_memleak")]);
    let memleak = Memleak::attach_reporting_by(
        command,
        program.pid(),
        &["--stack-storage-size", "200000"],
        &["86400"],
    );
    program.send_line("");
    let blocks: u64 = program.line().parse().expect("a number");
    let open = memleak.open_files();
    assert!(open < most_open, "{open} files are open");
    // By the options, 232 MiB are arrays of the kernel's, of which most are mapped; the rest is the report's,
    // and some 15 MiB of memleak's own code, which grows with what memleak can do.
    let report = finish_within("code that comes and goes", memleak, (264 * MIB, 60.0));
    let through = report.through("allocate");
    let shown: u64 = through.iter().map(|stack| stack.allocated.blocks).sum();
    let other: u64 = report.allocated().blocks - shown;
    assert_eq!(shown + report.lost.blocks, blocks, "besides {other}: {report}");
    for stack in through {
        let callers = ["call_library", "call_code", "call_file"];
        let is_true = stack
            .names()
            .windows(2)
            .all(|pair| pair[0] != "allocate" || pair[1] != "main");
        assert!(is_true, "{stack}");
        assert!(
            stack.end != "complete" || callers.iter().any(|caller| stack.passes(caller)),
            "{stack}"
        );
    }
    program.send_line("");
}
