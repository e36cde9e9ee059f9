//! Services with a cache, data from their start, churn and one slow leak: the leak is what a report begins
//! with.

use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Report, Stack};

/// Services that each have a cache that grows to its bound, data from their start, churn, and one leak of a
/// few per cent of all that is outstanding, with the function that leaks.
const SERVICES: [(&str, &str, &[&str]); 3] = [
    ("orders.cpp", "Auditor::make", &["-O2", "-g1"]),
    ("sessions.c", "reject", &["-O2"]),
    ("graph.cpp", "link_back", &["-O2", "-g1", "-pthread"]),
];

/// The leak is the first line of the table within six reports, with the highest score; the site with most
/// outstanding bytes is not.
#[test]
fn leak_is_ranked_first() {
    for (source, leak, flags) in SERVICES {
        let directory = directory("services");
        let mut program = Program::start(&compile(&directory, &format!("services/{source}"), flags), &[]);
        program.expect("ready");
        let recording = directory.join("recording");
        let file = recording.to_str().expect("UTF-8");
        let memleak = Memleak::attach_reporting(
            program.pid(),
            &["--format", "text", "--record", file],
            &["1", "6"],
        );
        program.send_line("");
        let text = memleak.wait_for_text();
        let last = text.rfind("\n[").expect("several reports");
        let rows: Vec<_> = text[last..].lines().skip(3).take(2).collect();
        let first: Vec<_> = rows[0].split_whitespace().collect();
        assert!(rows[0].contains(leak), "{source}: {text}");
        assert!(first[1].parse::<u8>().expect("a score") >= 8, "{source}: {text}");
        let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["report", file, "--format", "json"])
            .output()
            .expect("memleak was built");
        let report = Report::parse(&String::from_utf8(output.stdout).expect("UTF-8"));
        let leaks = |stack: &&Stack| stack.names().iter().any(|name| name.starts_with(leak));
        let leaked: Amount = report
            .stacks
            .iter()
            .filter(leaks)
            .map(|stack| stack.outstanding)
            .sum();
        let share = 100 * leaked.bytes / report.outstanding().bytes;
        assert!((1..=6).contains(&share), "{source}: {share} % {report}");
        assert!(!leaks(&&report.stacks[0]), "{source}: {report}");
    }
}
