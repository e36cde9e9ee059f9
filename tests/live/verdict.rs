//! Verdicts on running processes: blocks that memory shows to be held are never called lost, whatever moves,
//! and lost blocks are found.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use memleak_test::memleak::Memleak;
use memleak_test::program::{
    LIBRARIES, Program, compile, compile_as, compile_with, directory, end_if_only_compiled, of_next_release,
    require_root, stock,
};
use memleak_test::report::{Judgement, Report, Verdict};

pub(crate) const FLAGS: [&str; 6] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-pthread",
    "-ldl",
];

/// The only kind, besides those that are hidden by design, that no memory shows to be held: its pointers are
/// in a file.
const NOT_SHOWN: &str = "kernel_file";

/// Blocks by verdict.
pub(crate) type Counts = [u64; 4];

/// Sums up the verdicts on blocks that were allocated below `function`.
pub(crate) fn verdict_on(report: &Report, function: &str) -> Counts {
    let verdicts = report
        .through(function)
        .into_iter()
        .map(|stack| stack.verdict.as_ref());
    let verdicts = verdicts.map(|verdict| verdict.expect("it was asked for"));
    verdicts.fold([0; 4], |sum, verdict| {
        let counts = counts(verdict);
        std::array::from_fn(|at| sum[at] + counts[at])
    })
}

fn counts(verdict: &Verdict) -> Counts {
    let Verdict {
        definitely_lost,
        indirectly_lost,
        reachable,
        unknown,
    } = verdict;
    [definitely_lost, indirectly_lost, reachable, unknown].map(|amount| amount.blocks)
}

/// Each kind of blocks gets the verdict that is true by the program's account, while it runs.
#[test]
fn kinds() {
    let judgement = kinds_by("verdict-kinds", "--verdict", &|path| Command::new(path));
    assert!(
        judgement.passes >= 5 && judgement.stopped_ns.is_none(),
        "{judgement:?}"
    );
    // Even a test program has a pipe, but it is empty.
    assert!(judgement.not_seen.is_empty(), "{judgement:?}");
}

/// Each kind gets the true verdict from a copy that is made in one pass while threads are stopped; those that
/// wait in the kernel are left alone.
#[test]
fn kinds_of_a_stopped_process() {
    let judgement = kinds_by("verdict-kinds-stopped", "--verdict=stop", &|path| {
        Command::new(path)
    });
    assert!(
        judgement.passes == 1 && judgement.stopped_ns.is_some(),
        "{judgement:?}"
    );
}

/// Each kind gets the true verdict with a C library that has the guards of stacks within their mappings, and
/// caches of another form.
#[test]
fn kinds_with_the_next_c_library() {
    kinds_by("verdict-kinds-next", "--verdict=stop", &of_next_release);
}

/// Checks the verdict on each kind, and that the four parts of a verdict add up.
fn kinds_by(directory_name: &str, flag: &str, started: &dyn Fn(&Path) -> Command) -> Judgement {
    let directory = directory(directory_name);
    compile_as(
        &directory.join("unloaded.so"),
        "verdicts/unloaded.c",
        &["-shared", "-fPIC"],
    );
    let path = compile(&directory, "verdicts/kinds.cpp", &FLAGS);
    let mut program = Program::spawn(started(&path).args(["attached", "shown", "20"]));
    let memleak = Memleak::attach(program.pid(), &[flag]);
    program.send_line("");
    let mut truths = BTreeMap::new();
    for line in program.lines_before("ready") {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        truths.insert(words[0].clone(), words);
    }
    let report = memleak.finish();
    let mut wrong = Vec::new();
    for (kind, words) in &truths {
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let found = verdict_on(&report, kind);
        let [definitely, indirectly, reachable, unknown] = found;
        let is_right = match words[2].as_str() {
            "lost" => (definitely, indirectly) == (number(3), number(4)),
            "held" | "stale" => reachable == number(1),
            "kernel" if kind == NOT_SHOWN => true,
            "kernel" => reachable == number(1),
            "hidden" => true,
            other => panic!("{other}"),
        };
        if !is_right || unknown > 0 {
            wrong.push(format!("{words:?}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(truths.len() > 40, "{}", truths.len());
    for stack in &report.stacks {
        let verdict = stack.verdict.as_ref().expect("it was asked for");
        assert_eq!(counts(verdict).iter().sum::<u64>(), stack.outstanding.blocks);
    }
    let judgement = report.verdict.expect("it was asked for");
    assert_eq!(judgement.freed_later.blocks, 0);
    // Pointers to two kinds lead behind a length or a number of elements; those to three others to a word,
    // the middle or the end.
    for (form, least) in [
        ("length_prefix", 40),
        ("second_base", 20),
        ("string", 20),
        ("elsewhere", 60),
    ] {
        let blocks = judgement.only_inside.get(form).map_or(0, |amount| amount.blocks);
        assert!(blocks >= least, "{form}: {blocks}");
    }
    assert!(program.end().success());
    judgement
}

/// However fast two threads move pointers about, no held block is called lost, and nearly all lost ones are
/// found.
#[test]
fn moving_pointers() {
    let path = compile(
        &directory("verdict-moving"),
        "verdicts/mover.c",
        &["-O2", "-g", "-pthread"],
    );
    for (rate, flag) in [
        ("40000", "--verdict"),
        ("max", "--verdict"),
        ("max", "--verdict=stop"),
    ] {
        let mut program = Program::start(&path, &["20000", "16777216", "100", rate, "2"]);
        program.expect("started");
        let memleak = Memleak::attach(program.pid(), &[flag]);
        program.step("ready");
        let report = memleak.finish();
        let judgement = report.verdict.expect("it was asked for");
        let [definitely, indirectly, reachable, _] = counts(&judgement.verdict);
        assert_eq!(judgement.stopped_ns.is_some(), flag.ends_with("stop"));
        // Old register values still lead to some of the lost ones.
        assert!((95..=100).contains(&definitely), "{rate}: {definitely}");
        assert_eq!(indirectly, 0, "{rate}");
        assert!(reachable >= 20_000, "{rate}: {reachable}");
        program.send_line("");
        let account = program.line();
        assert!(account.starts_with("held 20000 of 20000"), "{account}");
        assert!(program.await_end().success());
    }
}

/// Each of several processes has its own verdicts; so have children that came during the trace, on what they
/// allocated themselves.
#[test]
fn several_processes() {
    let flags = ["-O2", "-g", "-fno-optimize-sibling-calls"];
    let path = compile(&directory("verdict-forked"), "verdicts/forked.c", &flags);
    let start = || {
        let program = Program::start(&path, &[]);
        program.expect("ready");
        program
    };
    let mut programs = [start(), start()];
    let pids = programs.each_ref().map(|program| program.pid().to_string());
    let memleak = Memleak::attach(programs[0].pid(), &["-p", &pids[1], "--follow-fork", "--verdict"]);
    for program in &mut programs {
        program.step("done");
    }
    let report = memleak.finish();
    for function in ["before_fork", "after_fork"] {
        assert_eq!(verdict_on(&report, function), [14, 0, 200, 0], "{function}");
    }
    for mut program in programs {
        program.end();
    }
}

/// Lost blocks of a process that is not traced are found by its allocator's lists, glibc's and jemalloc's,
/// while pointers move in it and when it is stopped.
#[test]
fn without_a_trace() {
    require_root();
    let path = compile(
        &directory("verdict-untraced"),
        "verdicts/mover.c",
        &["-O2", "-g", "-pthread"],
    );
    let jemalloc = stock(&format!("{LIBRARIES}/libjemalloc.so.2"), "libjemalloc2");
    for (library, flags) in [
        (None, &[][..]),
        (None, &["--stop"]),
        (Some(&jemalloc), &[]),
        (Some(&jemalloc), &["--stop"]),
    ] {
        let mut command = Command::new(&path);
        command.args(["20000", "16777216", "100", "max", "2"]);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let mut program = Program::spawn(&mut command);
        program.expect("started");
        program.step("ready");
        let found = verdict_of(&program, flags);
        let lost = found["verdict"]["definitely_lost"]["blocks"].as_u64();
        assert!(lost.is_some_and(|lost| (95..=100).contains(&lost)), "{found}");
        let reachable = found["verdict"]["reachable"]["blocks"].as_u64();
        assert!(reachable >= Some(20_000), "{found}");
        let listed = found["lost"].as_array().expect("a list").iter();
        let addresses = listed.map(|group| group["addresses"].as_array().map_or(0, Vec::len) as u64);
        assert_eq!(Some(addresses.sum()), lost);
        program.send_line("");
        let account = program.line();
        assert!(account.starts_with("held 20000 of 20000"), "{account}");
        assert!(program.await_end().success());
    }
}

/// A server whose caches and sessions come and go, and whose threads hand blocks to one another: no block
/// that was called lost is freed when it gives back all its data, and lost blocks are found.
#[test]
fn caches() {
    let path = compile(&directory("verdict-caches"), "verdicts/caches.cpp", &FLAGS);
    let mut program = Program::start(&path, &["1000", "2", "50"]);
    program.expect("started");
    let memleak = Memleak::attach_reporting(program.pid(), &["--verdict=each"], &["2"]);
    program.step("ready");
    for _ in 0..3 {
        assert_eq!(freed_later(&memleak.report()), 0);
    }
    program.send_line("");
    let account = program.line();
    let lost = account.strip_prefix("lost ").expect("a number of blocks");
    // Each has a text and amounts, too.
    let lost = 3 * lost.parse::<u64>().expect("a number");
    program.step("cleared");
    let report = memleak.finish();
    assert_eq!(freed_later(&report), 0);
    let [definitely, indirectly, ..] = verdict_on(&report, "(anonymous namespace)::lose(long)");
    let found = definitely + indirectly;
    assert!((lost * 9 / 10..=lost).contains(&found), "{found} of {lost}");
    assert!(program.end().success());
}

fn freed_later(report: &Report) -> u64 {
    let judgement = report.verdict.as_ref().expect("it was asked for");
    judgement.freed_later.blocks
}

/// Blocks whose pointers are invisible for a time are called lost; when they are freed after all, each later
/// report says so, and no condition counts as passed then.
#[test]
fn false_verdicts() {
    const WAYS: [&str; 3] = ["in_file", "masked_by_key", "at_odd_address"];
    let path = compile(
        &directory("verdict-hideaways"),
        "verdicts/hideaways.c",
        &["-O2", "-g"],
    );
    let mut program = Program::start(&path, &["100"]);
    program.expect("started");
    let flags = ["--verdict=each", "--fail-on", "definitely_lost>1GiB"];
    let memleak = Memleak::attach_reporting(program.pid(), &flags, &["1"]);
    program.step("ready");
    let lost_by = |report: &Report, way| {
        let [definitely, indirectly, ..] = verdict_on(report, way);
        definitely + indirectly
    };
    // Old register values can still lead to the last ones.
    let are_lost = |report: &Report| WAYS.iter().all(|way| (95..=100).contains(&lost_by(report, way)));
    let mut reports = (0..10).map(|_| memleak.report());
    let first = reports.find(are_lost).expect("a verdict on all of them");
    let lost: u64 = WAYS.iter().map(|way| lost_by(&first, way)).sum();
    assert_eq!(freed_later(&first), 0);
    program.step("freed");
    let mut reports = (0..10).map(|_| memleak.report());
    let noticed = reports.find(|report| freed_later(report) > 0);
    let noticed = freed_later(&noticed.expect("a report about what was freed"));
    assert!((lost..=300).contains(&noticed), "{noticed} of {lost}");
    memleak.interrupt();
    let (last, status) = memleak.wait();
    assert_eq!(freed_later(&last), noticed);
    assert_eq!(status.code(), Some(3));
    assert!(program.end().success());
}

/// Lost objects are shown with their class, though their allocation was not traced; their texts are
/// indirectly lost.
#[test]
fn classes_of_lost_objects() {
    require_root();
    let path = compile(
        &directory("verdict-classes"),
        "verdicts/lost_objects.cpp",
        &["-std=c++17", "-O1", "-s"],
    );
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let found = verdict_of(&program, &[]);
    let lost = |verdict: &str, class: &serde_json::Value| -> u64 {
        let groups = found["lost"].as_array().expect("a list").iter();
        let of = groups.filter(|group| group["verdict"] == verdict && group["class"] == *class);
        of.filter_map(|group| group["blocks"].as_u64()).sum()
    };
    // Old register values can lead to the last one.
    let objects = lost("definitely_lost", &"shop::Session".into());
    assert!((49..=50).contains(&objects), "{found}");
    assert!(
        (objects - 1..=objects).contains(&lost("indirectly_lost", &serde_json::Value::Null)),
        "{found}"
    );
    for (condition, status, message) in [
        ("definitely_lost>0", 1, "definitely_lost>0: exceeded: "),
        (
            "definitely_lost.blocks>=1000",
            0,
            "definitely_lost.blocks>=1000: not exceeded: ",
        ),
    ] {
        let judged = judge(&program, &["--fail-on", condition]);
        let said = String::from_utf8_lossy(&judged.stderr);
        assert_eq!(judged.status.code(), Some(status), "{said}");
        assert!(
            said.contains(message) && said.contains(" blocks definitely lost"),
            "{said}"
        );
    }
    program.end();
}

/// Blocks that come and go, each held all the time, are not called lost, whether the threads run or are
/// stopped; if they are stopped, all are listed.
#[test]
fn blocks_that_come_and_go() {
    let directory = directory("verdict-churn");
    let of_glibc = compile(&directory, "verdicts/churn.c", &["-O2", "-g", "-pthread"]);
    let of_musl = directory.join("churn-musl");
    compile_with(
        "musl-gcc",
        &of_musl,
        "verdicts/churn.c",
        &["-O2", "-g", "-pthread"],
    );
    let of_next = || of_next_release(&of_glibc);
    let started: [&dyn Fn() -> Command; 3] =
        [&|| Command::new(&of_glibc), &|| Command::new(&of_musl), &of_next];
    for start in started {
        // Where threads change all blocks, few of those from the start are left at the end; where they change
        // some, most are.
        for busy in ["200", "4000"] {
            let mut command = start();
            let path = format!("{command:?}");
            let mut program = Program::spawn(command.arg(busy));
            program.expect("ready");
            for flags in [&[][..], &["--stop"]] {
                let found = &verdict_of(&program, flags);
                let count = |part: &str| found["verdict"][part]["blocks"].as_u64();
                assert_eq!(
                    ["definitely_lost", "indirectly_lost", "freed_later"].map(count),
                    [Some(0); 3],
                    "{path} {busy} {flags:?}: {found:#}"
                );
                if flags.is_empty() {
                    assert!(count("unknown") > Some(100), "{path} {busy}: {found:#}");
                } else {
                    let is_whole = count("reachable") > Some(5000) && count("unknown") == Some(0);
                    assert!(is_whole, "{path} {busy}: {found:#}");
                    // A thread can be stopped in the middle of a change.
                    let left = found["not_listed_bytes"].as_u64();
                    assert!(left < Some(4 << 20), "{path} {busy}: {found:#}");
                }
            }
            assert!(program.end().success());
        }
    }
}

/// Makes a verdict on all blocks that a program has from malloc.
fn judge(program: &Program, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command.args(["verdict", "--format", "json", "-a", "-p"]);
    command.arg(program.pid().to_string()).args(flags);
    command.output().expect("memleak was built")
}

/// Returns the verdict on all blocks that a program has from malloc.
pub(crate) fn verdict_of(program: &Program, flags: &[&str]) -> serde_json::Value {
    let output = judge(program, flags);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A program that memleak starts is judged where it is about to end, and then ends as it would have.
#[test]
fn at_the_end_of_a_program() {
    require_root();
    let program = compile(&directory("verdict-end"), "processes/gated.c", &["-O2", "-g"]);
    let program = program.to_str().expect("a plain name");
    for (command, status, message) in [
        // The last of the ten is held by a variable.
        (
            &[program, "leak", "7"][..],
            1,
            "definitely_lost>0: exceeded: 432 B in 9 blocks definitely lost",
        ),
        (&["sh", "-c", "exit 7"], 7, "definitely_lost>0: not exceeded"),
    ] {
        end_if_only_compiled();
        let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["--verdict", "--fail-on", "definitely_lost>0", "--"])
            .args(command)
            .output()
            .expect("memleak was built");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.contains(message), "{errors}");
    }
}
