//! `memleak why` on programs that grow for a known cause, by their own account.

use std::process::Command;
use std::thread;

use serde_json::Value;

use memleak_test::program::{Program, compile, directory, require_root};

/// Causes of the program, each with the kind of the diagnosis, the function that is responsible, and the
/// growth in bytes per second where the program has one.
const CAUSES: [(&str, &str, &str, Option<f64>); 7] = [
    ("lost", "lost", "lose", Some(1e6)),
    ("kept", "kept", "remember", Some(1e6)),
    ("pinned", "pinned", "pin_some", None),
    ("mappings", "mappings", "map_some", Some(50.0 * 32.0 * 1024.0)),
    ("threads", "thread_stacks", "unjoined", None),
    (
        "memfd",
        "shared_memory",
        "fill_memfd",
        Some(100.0 * 16.0 * 1024.0),
    ),
    ("sockets", "kernel", "queue_some", None),
];
/// Maximum error of a growth.
const ERROR: f64 = 0.15;

fn diagnosis(pid: u32, time: &str) -> Value {
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"));
    memleak.args(["why", "-p", &pid.to_string(), time, "--format", "json"]);
    let output = memleak.output().expect("memleak was built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("a diagnosis")
}

/// The first cause is the right one, with the function, and by as much as the program grows.
#[test]
fn first_causes() {
    require_root();
    let path = compile(
        &directory("why"),
        "growth/grow.cpp",
        &["-std=c++17", "-O1", "-pthread"],
    );
    let check = |&(cause, kind, function, rate): &(&str, &str, &str, Option<f64>)| {
        let program = Program::start(&path, &["120", cause]);
        let found = diagnosis(program.pid(), "40s");
        let first = &found["causes"][0];
        let site = first["site"]["function"].as_str().unwrap_or_default();
        assert_eq!(
            (&found["grows"], &first["kind"]),
            (&Value::from(true), &Value::from(kind)),
            "{cause}: {found}"
        );
        assert!(site.ends_with(function), "{cause}: {found}");
        let share = first["share"].as_f64().expect("a number");
        assert!(share > 0.8, "{cause}: {found}");
        if let Some(rate) = rate {
            let measured = first["bytes_per_second"].as_f64().expect("a number");
            assert!(
                (measured / rate - 1.0).abs() < ERROR,
                "{cause}: {measured}: {found}"
            );
        }
    };
    thread::scope(|scope| {
        for cause in &CAUSES {
            scope.spawn(move || check(cause));
        }
    });
}

/// A program that does not grow is said not to, without a cause.
#[test]
fn steady() {
    require_root();
    let path = compile(
        &directory("why-steady"),
        "growth/grow.cpp",
        &["-std=c++17", "-O1", "-pthread"],
    );
    let program = Program::start(&path, &["120", "settled"]);
    // Until its cache is full.
    thread::sleep(std::time::Duration::from_secs(2));
    let found = diagnosis(program.pid(), "15s");
    assert_eq!(found["grows"], Value::from(false), "{found}");
    assert_eq!(found["causes"], Value::Array(Vec::new()), "{found}");
}
