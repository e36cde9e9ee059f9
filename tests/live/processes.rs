//! Several processes, and fork, exec and exit: each block is its own process's, each stack its own program's.

use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, copy_program, directory};
use memleak_test::report::{Amount, Report, Stack};

const RELEASE: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];

fn build(test: &str, source: &str) -> PathBuf {
    compile(&directory(&format!("processes-{test}")), source, &RELEASE)
}

#[track_caller]
fn start(path: &Path, arguments: &[&str]) -> Program {
    let program = Program::start(path, arguments);
    program.expect("ready");
    program
}

fn amount(blocks: u64, size: u64) -> Amount {
    Amount {
        bytes: blocks * size,
        blocks,
    }
}

/// Allocated and outstanding amount of one function, over all its stacks that are wanted.
fn by(report: &Report, symbol: &str, is_wanted: impl Fn(&Stack) -> bool) -> (Amount, Amount) {
    let stacks: Vec<_> = report.through(symbol);
    let wanted = || stacks.iter().filter(|stack| is_wanted(stack));
    (
        wanted().map(|stack| stack.allocated).sum(),
        wanted().map(|stack| stack.outstanding).sum(),
    )
}

/// Waits until `wanted` is true of a report; fails with the last report otherwise.
#[track_caller]
fn await_report(memleak: &Memleak, wanted: impl Fn(&Report) -> bool) {
    let mut report = memleak.report();
    for _ in 0..500 {
        if wanted(&report) {
            return;
        }
        report = memleak.report();
    }
    panic!("not as wanted:\n{report}");
}

/// Two processes of one program and one of another, traced together: each has its own stacks and its own
/// amounts.
#[test]
fn several_targets() {
    for attach in attach_paths() {
        let path = build(&format!("several-{attach}"), "amounts/plain.c");
        let mut programs = ["10", "30", "50"].map(|blocks| start(&path, &[blocks]));
        let [first, second, third] = programs.each_ref().map(Program::pid);
        let others = [second, third].map(|pid| pid.to_string()).join(",");
        let memleak = Memleak::attach(first, &["-p", &others, "--attach", attach]);
        for program in &mut programs {
            program.step("done");
        }
        let report = memleak.finish();
        report.check_sums();
        let traced: Vec<_> = report.targets.iter().map(|target| target.pid).collect();
        assert_eq!(traced, [first, second, third]);
        for (pid, blocks) in [(first, 5), (second, 15), (third, 25)] {
            for site in ["even", "odd"] {
                let through = report.through(site);
                let own: Vec<_> = through.iter().filter(|stack| stack.pid == pid).collect();
                let [stack] = own[..] else {
                    panic!("{pid}, {site}: {report}")
                };
                stack.check(&["leak", site, "main", "..", "_start"]);
                assert_eq!(stack.outstanding, amount(blocks, 24), "{pid}: {report}");
            }
        }
        for program in &mut programs {
            assert!(program.end().success());
        }
    }
}

/// The end of one of two processes ends nothing; the end of both ends the trace. Their blocks are told apart.
#[test]
fn trace_goes_on_until_all_targets_end() {
    let path = build("ends", "amounts/plain.c");
    let mut programs = ["10", "30"].map(|blocks| start(&path, &[blocks]));
    let [first, second] = programs.each_ref().map(Program::pid);
    let memleak = Memleak::attach(first, &["-p", &second.to_string()]);
    programs[0].step("done");
    assert!(programs[0].end().success());
    programs[1].step("done");
    assert!(programs[1].end().success());
    let report = memleak.last_report();
    report.check_sums();
    for (pid, blocks) in [(first, 10), (second, 30)] {
        let (allocated, outstanding) = by(&report, "leak", |stack| {
            stack.pid == pid && stack.ended.as_deref() == Some("exited")
        });
        assert_eq!(
            (allocated, outstanding),
            (amount(blocks, 24), amount(blocks, 24)),
            "{report}"
        );
    }
}

/// Programs of one layout, of which the first executes the second.
struct Images {
    first: PathBuf,
    second: PathBuf,
}

impl Images {
    fn build(test: &str) -> Self {
        Self::build_with(test, &[])
    }

    fn build_with(test: &str, more: &[&'static str]) -> Self {
        let directory = directory(&format!("processes-{test}"));
        let flags = |first: &'static str| [&RELEASE[..], &[first], more].concat();
        Self {
            first: compile_as(&directory.join("first"), "processes/images.c", &flags("-DFIRST")),
            second: compile_as(
                &directory.join("second"),
                "processes/images.c",
                &flags("-DSECOND"),
            ),
        }
    }

    /// Starts the first without address randomisation: all is at the same addresses before and after.
    #[track_caller]
    fn start(&self, first: [&str; 3], second: [&str; 3]) -> Program {
        let mut command = Command::new("setarch");
        command.args(["-R", "--"]).arg(&self.first).args(first);
        command.arg(&self.second).args(second);
        let program = Program::spawn(&mut command);
        program.expect("ready");
        program
    }
}

/// Checks that stacks through a function of `images.c`, whatever ended them, are of its program alone.
#[track_caller]
fn check_image(report: &Report, stacks: &[&Stack], name: &str, path: &Path) {
    let path = path.to_str().expect("UTF-8");
    for stack in stacks {
        let [inner, outer] = ["inner", "outer"].map(|part| format!("{name}_{part}"));
        match stack.end.as_str() {
            "complete" => stack.check(&[&inner, &outer, "main", "..", "_start"]),
            // Stacks end at the first object that was not read yet: the program itself, or libc.
            "table_not_loaded" => match stack.frames.len() {
                1 => {}
                _ => stack.check_names(&[&inner, &outer, "main"]),
            },
            other => panic!("{other}: {report}"),
        }
        let modules: Vec<_> = stack
            .frames
            .iter()
            .filter_map(|frame| frame.module.as_deref())
            .collect();
        assert!(
            modules
                .iter()
                .all(|module| *module == path || module.contains("libc")),
            "{report}"
        );
    }
}

/// After an exec the new program is traced on; at the same addresses, no stack of it is walked by the tables
/// of the old one, though it allocates before these can have been replaced. Blocks of the old one are told
/// apart.
#[test]
fn exec_at_the_same_addresses() {
    for attach in attach_paths() {
        let images = Images::build(&format!("exec-{attach}"));
        let mut program = images.start(["40", "asked", "leader"], ["500", "now", "leader"]);
        let pid = program.pid();
        let memleak = Memleak::attach(pid, &["--attach", attach]);
        program.step("done");
        program.step("done");
        let report = memleak.finish();
        report.check_sums();
        let [first, second] = &report.targets[..] else {
            panic!("{report}")
        };
        assert_eq!(
            (first.pid, second.pid, second.parent),
            (pid, pid, Some(first.instance))
        );
        assert_eq!(
            (first.ended.as_deref(), second.ended.as_deref()),
            (Some("exec"), None)
        );
        assert_eq!(second.exe.as_deref(), images.second.to_str());
        let of = |instance| move |stack: &Stack| stack.instance == instance;
        let all = by(&report, "first_inner", of(first.instance));
        assert_eq!(all, (amount(40, 24), amount(40, 24)), "{report}");
        let all = by(&report, "second_inner", of(second.instance));
        assert_eq!(all, (amount(500, 24), amount(500, 24)), "{report}");
        for (name, target) in [("first", &images.first), ("second", &images.second)] {
            let stacks = report.through(&format!("{name}_inner"));
            check_image(&report, &stacks, name, target);
        }
        assert!(program.end().success());
    }
}

/// Two programs execute one another, faster than memleak can read what they have mapped: amounts are exact
/// each time, and where the program is still known, all known frames of its stacks are its own.
#[test]
fn exec_chain() {
    const LENGTH: u64 = 30;
    let images = Images::build("chain");
    let (first, second) = (
        images.first.to_str().expect("UTF-8"),
        images.second.to_str().expect("UTF-8"),
    );
    let mut arguments = vec!["10", "asked", "leader"];
    for number in 1..LENGTH {
        arguments.extend([
            if number % 2 == 1 { second } else { first },
            "10",
            "now",
            "leader",
        ]);
    }
    let mut program = Program::spawn(Command::new("setarch").args(["-R", "--", first]).args(&arguments));
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    for _ in 0..LENGTH {
        program.step("done");
    }
    let report = memleak.finish();
    report.check_sums();
    assert_eq!(report.targets.len() as u64, LENGTH, "{report}");
    for (target, name) in report.targets.iter().zip(["first", "second"].iter().cycle()) {
        let stacks = || {
            report
                .stacks
                .iter()
                .filter(|stack| stack.instance == target.instance)
        };
        let all: Amount = stacks().map(|stack| stack.outstanding).sum();
        assert_eq!(all, amount(10, 24), "{report}");
        let path = if *name == "first" {
            &images.first
        } else {
            &images.second
        };
        let exe = target.exe.as_deref().map(Path::new);
        assert!(exe.is_none_or(|exe| exe == path), "{report}");
        let is_known = |stack: &Stack| stack.frames[0].module.is_some();
        let known: Vec<_> = stacks().filter(|stack| is_known(stack)).collect();
        check_image(&report, &known, name, path);
        let mut unknown = stacks().filter(|stack| !is_known(stack));
        assert!(unknown.all(|stack| stack.end == "table_not_loaded"), "{report}");
    }
    assert!(program.end().success());
}

/// Exec by another thread than the first: the process's probes are attached anew, and it is traced on.
#[test]
fn exec_by_another_thread() {
    for attach in attach_paths() {
        let images = Images::build(&format!("thread-{attach}"));
        let mut program = images.start(["40", "asked", "thread"], ["500", "asked", "leader"]);
        let memleak = Memleak::attach_reporting(program.pid(), &["--attach", attach], &["0.2"]);
        program.step("done");
        program.step("ready");
        // An instance that is reported is attached to.
        await_report(&memleak, |report| report.targets.len() == 2);
        program.step("done");
        let report = memleak.finish();
        let all = by(&report, "second_inner", |stack| stack.end == "complete");
        assert_eq!(all, (amount(500, 24), amount(500, 24)), "{attach}: {report}");
        assert!(program.end().success());
    }
}

/// Starts the first program of `images`, which executes the second and that the first again, each when asked.
/// `rounds` is the number of programs. Every stack of every program must be complete. Returns what memleak
/// says.
#[track_caller]
fn exec_asked(images: &Images, rounds: usize, flags: &[&str]) -> Vec<String> {
    let paths = [&images.first, &images.second].map(|path| path.to_str().expect("UTF-8"));
    let mut arguments = Vec::new();
    for number in 0..rounds {
        arguments.extend([paths[number % 2], "10", "asked", "leader"]);
    }
    let mut program = Program::start(&images.first, &arguments[1..]);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(program.pid(), flags, &["0.2"]);
    for number in 1..=rounds {
        if number > 1 {
            program.expect("ready");
            // An instance that is reported is attached to.
            await_report(&memleak, |report| report.targets.len() == number);
        }
        program.step("done");
        if number < rounds {
            program.send_line("");
        }
    }
    let (report, messages) = memleak.finish_with_messages();
    report.check_sums();
    assert_eq!(report.targets.len(), rounds, "{report}");
    for (target, name) in report.targets.iter().zip(["first", "second"].iter().cycle()) {
        let inner = format!("{name}_inner");
        let through = report.through(&inner).into_iter();
        let stacks: Vec<_> = through
            .filter(|stack| stack.instance == target.instance)
            .collect();
        let all: Amount = stacks.iter().map(|stack| stack.outstanding).sum();
        assert_eq!(all, amount(10, 24), "{report}");
        assert!(stacks.iter().all(|stack| stack.end == "complete"), "{report}");
    }
    messages
}

/// Static programs bring an allocator and a table of their own. With room for one of two tables at a time,
/// the one that is not in use makes room for the other, again and again, and every stack is complete.
#[test]
fn tables_make_room() {
    let images = Images::build_with("room", &["-static"]);
    let messages = exec_asked(&images, 5, &["-v", "--table-memory", "64K"]);
    let made_room = messages.iter().filter(|line| line.contains("makes room"));
    assert_eq!(made_room.count(), 4, "{messages:#?}");
}

/// Without room for the C library's table, stacks end there and say so; the program's own table has its room.
#[test]
fn too_little_table_memory() {
    let path = build("little", "amounts/plain.c");
    let mut program = start(&path, &["10"]);
    let memleak = Memleak::attach(program.pid(), &["--table-memory", "64K"]);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    report.check_sums();
    let warning = messages.iter().find(|line| line.contains("libc.so.6"));
    let warning = warning.unwrap_or_else(|| panic!("{messages:#?}"));
    assert!(
        warning.contains("--table-memory") && warning.contains("64.0 KiB"),
        "{warning}"
    );
    for site in ["even", "odd"] {
        let stack = report.only_through(site);
        assert_eq!(stack.names()[..3], ["leak", site, "main"], "{report}");
        assert_eq!(
            (stack.end.as_str(), stack.frames.len()),
            ("table_not_loaded", 4),
            "{report}"
        );
        assert_eq!(stack.outstanding, amount(5, 24), "{report}");
    }
    assert!(program.end().success());
}

/// Two processes of two copies of a program: their stacks are complete by one table between them.
#[test]
fn copies_share_a_table() {
    let directory = directory("processes-copies");
    let path = compile(&directory, "amounts/plain.c", &RELEASE);
    let copy = directory.join("copy");
    copy_program(&path, &copy);
    let mut programs = [&path, &copy].map(|path| start(path, &["10"]));
    let [first, second] = programs.each_ref().map(Program::pid);
    let memleak = Memleak::attach(first, &["-v", "-p", &second.to_string()]);
    for program in &mut programs {
        program.step("done");
    }
    let (report, messages) = memleak.finish_with_messages();
    report.check_sums();
    assert!(
        messages.iter().any(|line| line.contains("is a copy of")),
        "{messages:#?}"
    );
    for (pid, path) in [(first, &path), (second, &copy)] {
        let through = report.through("leak").into_iter();
        let own: Vec<_> = through.filter(|stack| stack.pid == pid).collect();
        assert_eq!(own.len(), 2, "{report}");
        for stack in own {
            assert_eq!(stack.end, "complete", "{report}");
            assert_eq!(stack.frames[0].module.as_deref(), path.to_str(), "{report}");
        }
    }
}

/// A thread that ends in the middle of a call leaves nothing behind but a count, and what others do is seen.
#[test]
fn threads_end_in_calls() {
    const THREADS: u64 = 20;
    for attach in attach_paths() {
        let path = build(&format!("threads-{attach}"), "processes/dying_threads.c");
        let mut program = start(&path, &[&THREADS.to_string()]);
        let memleak = Memleak::attach(program.pid(), &["--attach", attach]);
        program.step("done");
        let report = memleak.finish();
        report.check_sums();
        // They spend their time in calls, nearly all of it in the probes'.
        let abandoned = report.events.abandoned;
        assert!(
            (1..=THREADS).contains(&abandoned),
            "{attach}: {abandoned}: {report}"
        );
        let stack = report.only_through("after_threads");
        assert_eq!(
            (stack.end.as_str(), stack.outstanding.blocks),
            ("complete", 1),
            "{report}"
        );
        assert!(program.end().success());
    }
}

/// With --follow-fork a child is traced from its first instruction: what it allocates is its own, and its
/// frees of copies of its parent's blocks count for no process.
#[test]
fn fork_followed() {
    for attach in attach_paths() {
        let path = build(&format!("fork-{attach}"), "processes/fork.c");
        let mut program = start(&path, &[]);
        let memleak = Memleak::attach(program.pid(), &["--follow-fork", "--attach", attach]);
        program.step("done");
        let report = memleak.finish();
        report.check_sums();
        let parent = report.only_through("allocate_all");
        assert_eq!(
            (parent.pid, parent.outstanding),
            (program.pid(), amount(100, 32)),
            "{report}"
        );
        let [first, second] = &report.targets[..] else {
            panic!("{report}")
        };
        assert_eq!(second.parent, Some(first.instance));
        let all = by(&report, "in_child", |stack| stack.instance == second.instance);
        assert_eq!(all, (amount(100, 64), amount(100, 64)), "{report}");
        for stack in report.through("in_child") {
            // By its parent's tables, until it has its own.
            stack.check(&["in_child", "main", "..", "_start"]);
            assert_eq!(
                (stack.pid, stack.ended.as_deref()),
                (second.pid, Some("exited")),
                "{report}"
            );
        }
        assert_eq!(report.events.unknown_frees, 100, "the child's copies: {report}");
        assert!(program.end().success());
    }
}

/// Makes `children` in each of `batches`; waits until memleak has seen the end of each batch.
#[track_caller]
fn make_children(program: &mut Program, memleak: &Memleak, batches: usize, children: usize) {
    for batch in 1..=batches {
        program.step("done");
        let ended = |report: &Report| {
            let targets = report.targets.iter();
            targets.filter(|target| target.ended.is_some()).count()
        };
        await_report(memleak, |report| ended(report) == batch * children);
        // Blocks of instances that ended before a report have left the block table after the next.
        memleak.report();
    }
}

/// 200 children that live for a moment each: all are counted, and neither slots nor room for blocks run out,
/// though there are 63 and 100.
#[test]
fn many_short_children() {
    let path = build("short", "processes/children.c");
    let mut program = start(&path, &["40", "2", "alone"]);
    let flags = ["--follow-fork", "--max-blocks", "100"];
    let memleak = Memleak::attach_reporting(program.pid(), &flags, &["0.1"]);
    make_children(&mut program, &memleak, 5, 40);
    let report = memleak.finish();
    report.check_sums();
    assert_eq!(
        (report.targets.len(), report.lost.processes),
        (201, 0),
        "{report}"
    );
    let all = by(&report, "in_child", |stack| stack.ended.is_some());
    assert_eq!(all, (amount(400, 48), amount(400, 48)), "{report}");
    for target in &report.targets[1..] {
        let own = by(&report, "in_child", |stack| stack.instance == target.instance);
        assert_eq!(own.0, amount(2, 48), "{report}");
    }
    assert_eq!(report.lost.blocks, 0, "{report}");
}

/// Two tracers of all processes at the same probes do not disturb one another, nor one that comes later.
#[test]
fn two_tracers() {
    let path = build("tracers", "processes/children.c");
    let mut program = start(&path, &["3", "7", "alone"]);
    let flags = ["--follow-fork"];
    let tracers = [1, 2].map(|_| Memleak::attach(program.pid(), &flags));
    let single = Memleak::attach(program.pid(), &[]);
    program.step("done");
    for memleak in tracers {
        let report = memleak.finish();
        report.check_sums();
        assert_eq!(by(&report, "in_child", |_| true).0, amount(21, 48), "{report}");
    }
    assert!(single.finish().through("in_child").is_empty());
}

/// More children at once than there are slots: those that have none are counted, the others are complete.
#[test]
fn too_many_children() {
    let path = build("many", "processes/children.c");
    let mut program = start(&path, &["100", "1", "together"]);
    let memleak = Memleak::attach(program.pid(), &["--follow-fork"]);
    program.step("done");
    let report = memleak.finish();
    assert_eq!(
        report.targets.len() as u64 + report.lost.processes,
        101,
        "{report}"
    );
    assert_eq!(report.targets.len(), 63, "{report}");
    let all = by(&report, "in_child", |_| true);
    assert_eq!(all.0, amount(62, 48), "{report}");
}

/// vfork and posix_spawn under load. What a vfork child does to its parent's memory is the parent's; what it
/// does after exec is its own.
#[test]
fn vfork_followed() {
    const ROUNDS: u64 = 50;
    for attach in attach_paths() {
        let path = build(&format!("vfork-{attach}"), "processes/spawn.c");
        let mut program = start(&path, &[&ROUNDS.to_string()]);
        let memleak = Memleak::attach(program.pid(), &["--follow-fork", "--attach", attach]);
        program.step("done");
        let report = memleak.finish();
        report.check_sums();
        let of_parent = |stack: &Stack| stack.pid == program.pid() && stack.end == "complete";
        for (symbol, expected) in [
            ("in_parent", amount(ROUNDS, 72)),
            ("in_vfork_child", amount(2 * ROUNDS, 48)),
            ("thread_main", amount(20_000, 0)),
        ] {
            let (allocated, outstanding) = by(&report, symbol, of_parent);
            assert_eq!(allocated.blocks, expected.blocks, "{attach}, {symbol}: {report}");
            assert_eq!(outstanding, Amount::default(), "{attach}, {symbol}: {report}");
            if expected.bytes > 0 {
                assert_eq!(allocated.bytes, expected.bytes, "{attach}, {symbol}: {report}");
            }
        }
        assert_eq!(
            report.targets.len() as u64 + report.lost.processes,
            1 + 2 * ROUNDS,
            "{report}"
        );
        assert!(program.end().success());
    }
}

/// Without --follow-fork, children are not traced and leave their parent's amounts alone. Where a probe does
/// not tell processes apart, what a child of vfork allocates and frees in its parent's memory counts as the
/// parent's.
#[test]
fn vfork_not_followed() {
    for attach in attach_paths() {
        let path = build(&format!("unfollowed-{attach}"), "processes/spawn.c");
        let mut program = start(&path, &["20"]);
        let memleak = Memleak::attach(program.pid(), &["--attach", attach]);
        program.step("done");
        let report = memleak.finish();
        report.check_sums();
        assert_eq!(report.targets.len(), 1, "{attach}: {report}");
        let (in_child, left) = by(&report, "in_vfork_child", |_| true);
        let shared = if attach == "perf" { 40 } else { 0 };
        assert_eq!((in_child.blocks, left.blocks), (shared, 0), "{attach}: {report}");
        let (allocated, outstanding) = by(&report, "thread_main", |_| true);
        assert_eq!(
            (allocated.blocks, outstanding.blocks),
            (20_000, 0),
            "{attach}: {report}"
        );
        assert!(program.end().success());
    }
}
