//! Profiles that a collector of OpenTelemetry receives, read with the project's own messages
//! (opentelemetry-proto of PyPI), agree with memleak's reports.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::receiver::{Received, Receiver, answer};
use memleak_test::report::{Amount, Report};

/// Directory where `tests/setup.sh` installs packages from PyPI.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/python");

/// Frames of a stack, innermost first: the module, and the functions in it.
type Frames = Vec<(Option<String>, Vec<String>)>;

/// A request as the script reads it.
#[track_caller]
fn read(request: &Received) -> Value {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("request.gz");
    fs::write(&file, &request.body).expect("our own");
    let output = Command::new("/usr/bin/python3")
        .arg("tests/read_otlp.py")
        .arg(&file)
        .env("PYTHONPATH", PACKAGES)
        .output()
        .expect("apt-get install python3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tests/setup.sh test\n{errors}");
    serde_json::from_slice(&output.stdout).expect("one request of one process")
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// Values of a profile by stack; empty if it was left out.
fn values(request: &Value, kind: &str) -> BTreeMap<Frames, u64> {
    let profiles = request["profiles"].as_array().expect("profiles");
    let samples = profiles.iter().filter(|profile| profile["type"] == kind);
    let samples = samples.flat_map(|profile| profile["samples"].as_array().expect("samples"));
    let mut values = BTreeMap::new();
    for sample in samples {
        let frames = sample["frames"].as_array().expect("frames").iter().map(|frame| {
            let functions = frame["functions"].as_array().expect("functions");
            (
                frame["module"].as_str().map(str::to_owned),
                functions.iter().map(text).collect(),
            )
        });
        *values.entry(frames.collect()).or_default() += sample["value"].as_u64().expect("a number");
    }
    values
}

/// Stacks of a report by what a profile knows of them, with the amounts that are not 0.
fn stacks(report: &Report, amount: impl Fn(Amount) -> u64) -> BTreeMap<Frames, u64> {
    let mut values = BTreeMap::new();
    for stack in report.stacks.iter().filter(|stack| amount(stack.outstanding) > 0) {
        let frames = stack.frames.iter().map(|frame| {
            let inlined = frame.inlined.iter().map(|inlined| inlined.symbol.clone());
            let functions = inlined.chain([frame.symbol.clone()]).flatten();
            (frame.module.clone(), functions.collect())
        });
        *values.entry(frames.collect()).or_default() += amount(stack.outstanding);
    }
    values
}

/// Checks that a request's resource has the attributes of the process, and that its profiles are of a moment
/// or of a period, as they should be.
#[track_caller]
fn check_resource(request: &Value, pid: u32) {
    let resource = &request["resource"];
    assert_eq!(resource["process.pid"], pid);
    assert_eq!(resource["service.name"], "snapshots");
    assert_eq!(resource["process.executable.name"], "snapshots");
    assert_eq!(resource["deployment.environment.name"], "test");
    assert!(
        text(&resource["process.executable.path"]).ends_with("/snapshots"),
        "{resource}"
    );
    assert!(
        resource["host.name"]
            .as_str()
            .is_some_and(|name| !name.is_empty()),
        "{resource}"
    );
    for profile in request["profiles"].as_array().expect("profiles") {
        let is_of_a_moment = text(&profile["type"]).starts_with("inuse_");
        assert_eq!(profile["duration_ns"] == 0, is_of_a_moment, "{profile}");
    }
}

/// Outstanding amounts of the last request are those of the last report, stack by stack; allocated ones of
/// all requests add up to its total. What the collector could not take is sent again, and is the same.
#[test]
fn profiles_are_the_reports() {
    let collector = Receiver::start(|number| match number {
        0 => Some(answer(503, "Retry-After: 0\r\n", "")),
        _ => Some(answer(200, "Content-Type: application/x-protobuf\r\n", "")),
    });
    let directory = directory("collector");
    let program = compile(
        &directory,
        "amounts/snapshots.c",
        &["-O2", "-fno-optimize-sibling-calls", "-pthread"],
    );
    let mut program = Program::start(&program, &["5000", "2"]);
    program.expect("ready");
    let url = format!("http://{}/v1development/profiles", collector.address);
    let flags = [
        "--push",
        &url,
        "--push-api",
        "otlp",
        "--push-label",
        "deployment.environment.name=test",
        "-o",
        "0",
    ];
    let memleak = Memleak::attach_reporting(program.pid(), &flags, &["0.4"]);
    program.step("kept");
    program.step("churning");
    memleak.report();
    memleak.report();
    program.step("quiet");
    memleak.report();
    let (reports, messages) = memleak.finish_with_all_reports();
    let last = reports.last().expect("a report");
    let requests = collector.rest();
    for request in &requests {
        assert_eq!(request.line, "POST /v1development/profiles HTTP/1.1");
        assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
        assert_eq!(request.header("content-encoding"), Some("gzip"));
    }
    let bodies: Vec<_> = requests.iter().map(|request| &request.body).collect();
    assert!(
        requests.len() >= 4 && bodies[0] == bodies[1],
        "{} requests",
        requests.len()
    );
    let read: Vec<Value> = requests[1..].iter().map(read).collect();
    read.iter()
        .for_each(|request| check_resource(request, program.pid()));
    let at_end = read.last().expect("a request");
    let (bytes, blocks) = (values(at_end, "inuse_space"), values(at_end, "inuse_objects"));
    assert_eq!(bytes, stacks(last, |amount| amount.bytes));
    assert_eq!(blocks, stacks(last, |amount| amount.blocks));
    let kept = bytes.iter().find(|(frames, _)| {
        frames
            .iter()
            .any(|(_, names)| names.iter().any(|name| name == "keep_block"))
    });
    assert_eq!(kept.expect("a stack").1, &(24 * 5000));
    let sum = |kind: &str| {
        read.iter()
            .flat_map(|request| values(request, kind).into_values())
            .sum::<u64>()
    };
    assert_eq!(
        (sum("alloc_space"), sum("alloc_objects")),
        (last.allocated.bytes, last.allocated.blocks)
    );
    let none_lost = format!("sent to http://{}, none lost", collector.address);
    assert!(
        messages.iter().any(|message| message.contains(&none_lost)),
        "{messages:#?}"
    );
}
