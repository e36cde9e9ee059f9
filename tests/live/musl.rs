//! Verdicts on programs with musl's malloc: lost blocks are found, whatever stale pointers are in its free
//! memory, and held ones are not called lost.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::verdict::{verdict_of, verdict_on};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_with, directory, end_if_only_compiled, require_root};
use memleak_test::report::Report;

/// Compiles the program with the shared C library, and with it linked in.
fn programs(directory_name: &str) -> [PathBuf; 2] {
    let directory = directory(directory_name);
    [("dynamic", None), ("static", Some("-static"))].map(|(name, linked)| {
        let flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-pthread"];
        let flags: Vec<_> = flags.into_iter().chain(linked).collect();
        compile_with("musl-gcc", &directory.join(name), "verdicts/musl.c", &flags)
    })
}

/// The program's own account of its blocks.
#[derive(Default)]
struct Truths {
    kinds: Vec<Kind>,
    /// Addresses of blocks that it lost before it was asked to go on.
    old: BTreeSet<u64>,
}

struct Kind {
    name: String,
    is_lost: bool,
    /// Blocks that are lost definitely, and indirectly.
    parts: [u64; 2],
}

impl Truths {
    /// Adds a line. Returns false if it was the last.
    fn add(&mut self, line: &str) -> bool {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["ready"] => return false,
            ["old", address] => {
                self.old
                    .insert(u64::from_str_radix(address, 16).expect("an address"));
            }
            [name, _, truth, definitely, indirectly] => self.kinds.push(Kind {
                name: name.to_owned(),
                is_lost: truth == "lost",
                parts: [definitely, indirectly].map(|number| number.parse().expect("a number")),
            }),
            _ => panic!("{line}"),
        }
        true
    }

    fn of(program: &Program) -> Self {
        let mut truths = Self::default();
        while truths.add(&program.line()) {}
        truths
    }

    /// Blocks that are lost since it went on, definitely and indirectly.
    fn lost(&self) -> [u64; 2] {
        let lost = self.kinds.iter().filter(|kind| kind.is_lost);
        lost.fold([0; 2], |sum, kind| {
            std::array::from_fn(|at| sum[at] + kind.parts[at])
        })
    }
}

/// Checks that each kind has the verdict that is true by the program's account.
#[track_caller]
fn check(path: &Path, report: &Report, truths: &Truths) {
    let mut wrong = Vec::new();
    for kind in &truths.kinds {
        let found = verdict_on(report, &kind.name);
        let [definitely, indirectly] = kind.parts;
        let expected = match kind.is_lost {
            true => [definitely, indirectly, 0, 0],
            false => [0, 0, definitely + indirectly, 0],
        };
        if found != expected {
            wrong.push(format!("{}: {found:?}, not {expected:?}", kind.name));
        }
    }
    assert!(wrong.is_empty(), "{path:?}: {wrong:#?}");
    assert!(truths.kinds.len() > 20, "{}", truths.kinds.len());
    let judgement = report.verdict.as_ref().expect("it was asked for");
    assert_eq!(judgement.freed_later.blocks, 0);
}

/// Verdicts on a program that memleak attaches to are true, by passes while it runs and by a copy.
#[test]
fn kinds() {
    for path in &programs("musl-kinds") {
        for flag in ["--verdict", "--verdict=stop"] {
            let mut program = Program::start(path, &["attached"]);
            program.await_reading();
            let memleak = Memleak::attach(program.pid(), &[flag]);
            program.send_line("");
            let truths = Truths::of(&program);
            check(path, &memleak.finish(), &truths);
            assert!(program.end().success());
        }
    }
}

/// Verdicts on programs that memleak starts are true at their end.
#[test]
fn kinds_at_the_end() {
    end_if_only_compiled();
    require_root();
    for path in &programs("musl-end") {
        let output = path.with_extension("json");
        let ended = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["--verdict", "--format", "json", "--force", "--output"])
            .arg(&output)
            .arg("--")
            .arg(path)
            .stdin(Stdio::null())
            .output()
            .expect("memleak was built");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{path:?}: {errors}");
        let reports = std::fs::read_to_string(&output).expect("a report");
        let last = reports.lines().last().unwrap_or_else(|| panic!("{errors}"));
        let mut truths = Truths::default();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(!said.lines().all(|line| truths.add(line)), "{said}");
        check(path, &Report::parse(last), &truths);
    }
}

/// A verdict is also made where `main` returns, which ends in another function than `_exit`.
#[test]
fn at_the_end_of_main() {
    end_if_only_compiled();
    require_root();
    let directory = directory("musl-main");
    for flags in [&["-O2", "-g"][..], &["-O2", "-g", "-static"]] {
        let path = directory.join("gated");
        compile_with("musl-gcc", &path, "processes/gated.c", flags);
        let ended = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["--verdict", "--fail-on", "definitely_lost>0", "--"])
            .arg(&path)
            .args(["leak", "7"])
            .output()
            .expect("memleak was built");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{flags:?}: {errors}");
        // The last of the ten is held by a variable.
        let message = "definitely_lost>0: exceeded: 432 B in 9 blocks definitely lost";
        assert!(errors.contains(message), "{flags:?}: {errors}");
    }
}

/// Without a trace, all lost blocks are found, those from before included, and nothing else.
#[test]
fn blocks_in_use() {
    for path in &programs("musl-in_use") {
        for flags in [&[][..], &["--stop"]] {
            let mut program = Program::start(path, &[]);
            let truths = Truths::of(&program);
            program.await_reading();
            let found = verdict_of(&program, flags);
            assert_eq!(found["allocators"], serde_json::json!(["musl"]), "{path:?}");
            let count = |verdict: &str| found["verdict"][verdict]["blocks"].as_u64();
            let [definitely, indirectly] = truths.lost();
            let all = [definitely + truths.old.len() as u64, indirectly];
            assert_eq!(
                [count("definitely_lost"), count("indirectly_lost")],
                all.map(Some),
                "{path:?}: {found:#}"
            );
            let groups = found["lost"].as_array().expect("groups");
            let addresses = groups
                .iter()
                .flat_map(|group| group["addresses"].as_array().expect("addresses"));
            let addresses: BTreeSet<_> = addresses
                .map(|address| {
                    let hex = address.as_str().expect("text").trim_start_matches("0x");
                    u64::from_str_radix(hex, 16).expect("an address")
                })
                .collect();
            assert!(truths.old.is_subset(&addresses), "{path:?}");
            assert!(program.end().success());
        }
    }
}
