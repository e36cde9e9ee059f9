//! Verdicts on living processes: what memory shows to be held is never called lost, whatever moves, and what is lost is found.

use std::collections::BTreeMap;
use std::process::Command;

use crate::common::memleak::Memleak;
use crate::common::program::{Program, compile, compile_as, directory, require_root};
use crate::common::report::{Report, Verdict};

const FLAGS: [&str; 6] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-pthread",
    "-ldl",
];

/// Kinds of which no memory says that they are held, besides those that are hidden by design: only the kernel has them, and does not
/// show them.
const NOT_SHOWN: [&str; 4] = [
    "kernel_pending_signal",
    "kernel_pipe",
    "kernel_socket",
    "kernel_file",
];
/// Lost kinds that stale pointers in memory that the program can still use lead to: in the stack of a thread that has ended, which
/// glibc keeps for another, and in a block beyond its requested size.
const STALE: [&str; 2] = ["lost_with_cached_stack", "lost_stale_in_slack"];

/// Blocks by verdict.
type Counts = [u64; 4];

/// Sums the verdicts on what was allocated below `function`.
fn verdict_on(report: &Report, function: &str) -> Counts {
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

/// Each of 96 kinds of blocks gets the verdict that is true by the program's word. The four parts of a verdict add up.
#[test]
fn kinds() {
    let directory = directory("verdict-kinds");
    compile_as(
        &directory.join("unloaded.so"),
        "verdicts/unloaded.c",
        &["-shared", "-fPIC"],
    );
    let path = compile(&directory, "verdicts/kinds.cpp", &FLAGS);
    let mut program = Program::start(&path, &["attached", "20"]);
    let memleak = Memleak::attach(program.pid(), &["--verdict"]);
    program.send_line("");
    let mut truths = BTreeMap::new();
    loop {
        let line = program.line();
        if line == "ready" {
            break;
        }
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
            "lost" if STALE.contains(&kind.as_str()) => definitely + indirectly + reachable == number(1),
            "lost" => (definitely, indirectly) == (number(3), number(4)),
            "held" | "stale" => reachable == number(1),
            "kernel" if NOT_SHOWN.contains(&kind.as_str()) => true,
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
    let judgement = report.verdict.as_ref().expect("it was asked for");
    assert!(
        judgement.passes >= 5 && judgement.stopped_ns.is_none(),
        "{judgement:?}"
    );
    assert_eq!(judgement.freed_later.blocks, 0);
    assert!(program.end().success());
}

/// However fast two threads move pointers about, no block that is held is called lost; nearly all that are lost are found.
#[test]
fn moving_pointers() {
    let path = compile(
        &directory("verdict-moving"),
        "verdicts/mover.c",
        &["-O2", "-g", "-pthread"],
    );
    for rate in ["40000", "max"] {
        let mut program = Program::start(&path, &["20000", "16777216", "100", rate, "2"]);
        program.expect("started");
        let memleak = Memleak::attach(program.pid(), &["--verdict"]);
        program.step("ready");
        let report = memleak.finish();
        let [definitely, indirectly, reachable, _] =
            counts(&report.verdict.as_ref().expect("it was asked for").verdict);
        // Some of the lost are where registers of their time still are.
        assert!((95..=100).contains(&definitely), "{rate}: {definitely}");
        assert_eq!(indirectly, 0, "{rate}");
        assert!(reachable >= 20_000, "{rate}: {reachable}");
        program.send_line("");
        let account = program.line();
        assert!(account.starts_with("held 20000 of 20000"), "{account}");
        assert!(program.await_end().success());
    }
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
