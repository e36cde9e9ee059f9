use std::time::Duration;

use nix::errno::Errno;

use super::*;
use crate::bpf::{CallHooks, LoadError};

fn config() -> TraceConfig {
    TraceConfig::of_process(1)
}

/// Ways by each path, with Python and then without.
fn ways(frees: Option<CallHooks>) -> Vec<Way> {
    let of = |python| {
        AttachPath::ALL.map(|path| Way {
            path,
            regions: None,
            frees,
            python,
        })
    };
    [of(true), of(false)].concat()
}

fn refusal(name: &str, log: &[&str]) -> Error {
    let program = RefusedProgram {
        name: name.to_owned(),
        errno: Errno::EINVAL,
        log: log.iter().map(|&line| line.to_owned()).collect(),
        took: Duration::from_secs(1),
    };
    Error::new(LoadError::Program(program)).context("cannot trace process 1")
}

/// Ways that are tried if the kernel refuses these programs, by paths and whether with Python.
fn tried(refused: &[&str], log: &[&str]) -> Vec<(AttachPath, bool)> {
    let mut attempts = Attempts::new(ways(None), &config());
    let mut tried = Vec::new();
    while let Some(way) = attempts.next() {
        tried.push((way.path, way.python));
        match refused.iter().find(|name| way.loads(name)) {
            Some(name) => attempts.failed(way, refusal(name, log)),
            None => break,
        }
    }
    tried
}

/// A program that the verifier has refused is not tried again by another way that loads the same; without
/// Python, it counts as another program.
#[test]
fn what_was_refused_is_not_tried_again() {
    use AttachPath::{Multi, Session};
    let log = ["infinite loop detected at insn 7"];
    assert_eq!(tried(&[], &log), [(Session, true)]);
    assert_eq!(
        tried(&["allocation_session"], &log),
        [(Session, true), (Multi, true)]
    );
    assert_eq!(
        tried(&["free_entry"], &log),
        [(Session, true), (Session, false)],
        "all ways have it"
    );
    assert_eq!(
        tried(&["allocation_session", "allocation_return"], &log),
        [(Session, true), (Multi, true), (Session, false), (Multi, false)]
    );
    // Whatever the kernel lacks for one way, another can do without; Python has nothing to do with it.
    let all = AttachPath::ALL.map(|path| (path, true));
    assert_eq!(tried(&["free_entry"], &[]), all);
    assert_eq!(tried(&["free_entry"], &["invalid func unknown#2002000000"]), all);
}

/// After too much time in the verifier, nothing else is tried, and the error says what the user can try.
#[test]
fn time_is_bounded() {
    let mut attempts = Attempts::new(ways(None), &config());
    let way = attempts.next().expect("the first");
    attempts.tolerance.spend(PATIENCE + Duration::from_secs(3));
    attempts.failed(way, refusal("allocation_session", &["too large"]));
    assert_eq!(attempts.next(), None);
    let advice = attempts.remedies(&config());
    assert_eq!(
        advice,
        "; 5 other ways were not tried after 23 s in the verifier; try --python off or --attach multi"
    );
}

/// Python that is left out is listed as missing, with the reason.
#[test]
fn missing_parts() {
    let mut attempts = Attempts::new(ways(Some(CallHooks::Functions)), &config());
    let way = attempts.next().expect("the first");
    attempts.failed(way, refusal("free_entry", &["loop"]));
    let way = attempts.next().expect("without Python");
    assert!(!way.python);
    let missing = attempts.succeeded(way);
    assert_eq!(
        missing,
        [Missing {
            part: TracePart::Python,
            program: "free_entry".to_owned(),
            reason: "loop (verifier, EINVAL)".to_owned(),
        }]
    );
}
