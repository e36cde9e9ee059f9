//! Processes that join the selected ones are traced from then on, and those that leave no longer; a thousand
//! can be traced at once.

use std::fs;
use std::path::Path;
use std::process::Command;

use memleak_test::cgroup::{Cgroup, mounts};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_as, directory};
use memleak_test::report::Report;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Compiles a program, under its own name, that leaks as many blocks as its argument says.
#[track_caller]
fn build(name: &str) -> std::path::PathBuf {
    compile_as(
        &directory(&format!("members-{name}")).join(name),
        "amounts/plain.c",
        &RELEASE,
    )
}

#[track_caller]
fn start(path: &Path, blocks: &str) -> Program {
    let program = Program::start(path, &[blocks]);
    program.expect("ready");
    program
}

/// Returns the blocks that each instance of a process has allocated by `leak`, with how it ended, in the
/// order of their start.
fn leaks(report: &Report) -> Vec<(u32, u64, Option<&str>)> {
    let targets = report.targets.iter().map(|target| {
        let stacks = report.through("leak").into_iter();
        let own = stacks.filter(|stack| stack.instance == target.instance);
        let blocks = own.map(|stack| stack.allocated.blocks).sum();
        (target.pid, blocks, target.ended.as_deref())
    });
    targets.collect()
}

/// A process that starts later is traced; when none is left, the trace ends.
#[test]
fn starts_later() {
    let path = build("later-target");
    let mut first = start(&path, "10");
    let mut memleak = Memleak::attach_selected(&["-p", "later-target"]);
    first.step("done");
    let mut second = start(&path, "30");
    memleak.await_message(&format!("also tracing {} (later-target, by name)", second.pid()));
    first.end();
    memleak.await_message(&format!("later-target ({}) has exited", first.pid()));
    second.step("done");
    let mut third = start(&path, "5");
    memleak.await_message(&format!("also tracing {} ", third.pid()));
    third.step("done");
    second.end();
    third.end();
    let report = memleak.last_report();
    let pids = [first.pid(), second.pid(), third.pid()];
    let exited = Some("exited");
    assert_eq!(
        leaks(&report),
        [(pids[0], 10, exited), (pids[1], 30, exited), (pids[2], 5, exited)]
    );
}

/// A process that is put into the cgroup is traced from then on, and one that is taken out no longer: its
/// allocations meanwhile are not seen, and its outstanding blocks are those that it left with.
#[test]
fn moves_between_cgroups() {
    let path = build("moving-target");
    let name = format!("memleak-members-{}", std::process::id());
    let (unified, pids) = mounts();
    for mount in [Some(unified), pids].into_iter().flatten() {
        let inside = Cgroup::make(&mount, &name);
        let outside = Cgroup::make(&mount, &format!("{name}-other"));
        let mut stays = start(&path, "3");
        let mut moves = start(&path, "20");
        inside.add(&stays);
        outside.add(&moves);
        let mut memleak = Memleak::attach_selected(&["--cgroup", &name]);
        inside.add(&moves);
        memleak.await_message(&format!("also tracing {} ", moves.pid()));
        outside.add(&moves);
        memleak.await_message(&format!(
            "moving-target ({}) is no longer traced: it no longer matches",
            moves.pid()
        ));
        moves.step("done");
        inside.add(&moves);
        memleak.await_message(&format!("also tracing {} ", moves.pid()));
        stays.step("done");
        let report = memleak.finish();
        assert_eq!(
            leaks(&report),
            [
                (stays.pid(), 3, None),
                (moves.pid(), 0, Some("left")),
                (moves.pid(), 0, None)
            ]
        );
        assert_eq!(report.lost.processes, 0);
        drop((stays, moves));
    }
}

/// Blocks of a process that left are reported as what it had then, not as outstanding in a running process.
#[test]
fn holds_what_it_left_with() {
    let path = build("leaving-target");
    let name = format!("memleak-leaving-{}", std::process::id());
    let (unified, _) = mounts();
    let inside = Cgroup::make(&unified, &name);
    let outside = Cgroup::make(&unified, &format!("{name}-other"));
    let (stays, mut moves) = (start(&path, "1"), start(&path, "20"));
    inside.add(&stays);
    inside.add(&moves);
    let mut memleak = Memleak::attach_selected(&["--cgroup", &name]);
    moves.step("done");
    outside.add(&moves);
    memleak.await_message("is no longer traced");
    let (report, messages) = memleak.finish_with_messages();
    let ended = report.through("leak");
    assert!(!ended.is_empty(), "{messages:#?}");
    for stack in ended {
        assert_eq!((stack.pid, stack.ended.as_deref()), (moves.pid(), Some("left")));
    }
    drop((stays, moves));
}

/// A process that executes another program, of another name, is no longer selected; with `--follow-fork` it
/// stays.
#[test]
fn executes_another_program() {
    let target = build("executed-target");
    let shell = directory("members-shell").join("member-shell");
    fs::copy("/bin/sh", &shell).expect("a shell");
    for (flags, expected) in [(&[][..], Some("left")), (&["--follow-fork"], None)] {
        let mut command = Command::new(&shell);
        command
            .args(["-c", "echo ready; read line; exec \"$0\" 7"])
            .arg(&target);
        let mut program = Program::spawn(&mut command);
        program.expect("ready");
        let memleak = Memleak::attach_selected(&[&["-p", "member-shell"], flags].concat());
        program.send_line("go");
        program.expect("ready");
        if expected.is_some() {
            // It was the only one.
            let report = memleak.last_report();
            let ends: Vec<_> = leaks(&report).into_iter().map(|(_, _, end)| end).collect();
            assert_eq!(ends, [Some("exec"), expected]);
        } else {
            program.step("done");
            let report = memleak.finish();
            assert_eq!(leaks(&report)[1..], [(program.pid(), 7, None)]);
        }
    }
}

/// A process for which there is no room causes a warning and is counted; it is traced once another has ended.
#[test]
fn no_room() {
    let path = build("crowded-target");
    let (mut first, mut second) = (start(&path, "1"), start(&path, "2"));
    let mut memleak = Memleak::attach_selected(&["-p", "crowded-target", "--max-processes", "2"]);
    let mut third = start(&path, "3");
    memleak.await_message("no room for more than 2 processes: others are left out; raise --max-processes");
    first.end();
    memleak.await_message(&format!("also tracing {} ", third.pid()));
    second.step("done");
    third.step("done");
    let report = memleak.finish();
    assert_eq!(
        leaks(&report),
        [
            (first.pid(), 0, Some("exited")),
            (second.pid(), 2, None),
            (third.pid(), 3, None)
        ]
    );
    assert_eq!(report.lost.processes, 1);
}

/// More than a thousand processes at once, which each have a mapping list of their own: every block of each
/// is counted, and every stack is whole. What that takes of memory is what the documentation says.
#[test]
fn a_thousand() {
    const COUNT: u32 = 1100;
    const MAX_KERNEL_BYTES: u64 = 512 << 20;
    const MAX_CPU_SECONDS: f64 = 60.0;
    let path = compile_as(
        &directory("members-crowd").join("crowd"),
        "processes/crowd.c",
        &RELEASE,
    );
    let mut crowd = Program::start(&path, &[&COUNT.to_string(), "crowd-member"]);
    crowd.expect("ready");
    let memleak = Memleak::attach_selected(&["-p", "crowd-member"]);
    let attached = memleak.cpu_seconds();
    crowd.step("done");
    let report = memleak.finish();
    crowd.step("ended");
    let mut blocks: Vec<_> = leaks(&report).into_iter().map(|(_, blocks, _)| blocks).collect();
    blocks.sort_unstable();
    let mut expected: Vec<_> = (0..COUNT).map(|number| u64::from(number % 7 + 1)).collect();
    expected.sort_unstable();
    assert_eq!(blocks, expected);
    let stacks = report.through("leak");
    assert!(stacks.iter().all(|stack| stack.end == "complete"));
    assert_eq!(report.lost.processes, 0);
    assert!(report.own.kernel_bytes < MAX_KERNEL_BYTES, "{:?}", report.own);
    assert!(
        attached < MAX_CPU_SECONDS,
        "{attached:.1} s of CPU time to attach"
    );
}
