//! Ages of blocks are true, whatever time namespaces memleak and the traced process are in.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};

const BLOCKS: usize = 30;
/// Longer than the age below which blocks are young.
const AGE: Duration = Duration::from_millis(600);
/// Far longer than a run of this test, and far shorter than the offsets.
const MOST_AGE: Duration = Duration::from_secs(600);

/// A command in a time namespace whose clocks are `seconds` ahead.
fn shifted(seconds: &str, program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--time",
        "--monotonic",
        seconds,
        "--boottime",
        seconds,
        "--",
        program,
    ]);
    command
}

/// Ages of all outstanding blocks, and how many are young.
fn ages(report: &str) -> (Vec<Duration>, u64) {
    let report: Value = serde_json::from_str(report).expect("JSON");
    let stacks = report["stacks"].as_array().expect("stacks");
    let listed = stacks
        .iter()
        .flat_map(|stack| stack["blocks"]["listed"].as_array().expect("-a"));
    let ages = listed.map(|block| Duration::from_nanos(block["age_ns"].as_u64().expect("an age")));
    let young = stacks
        .iter()
        .map(|stack| stack["young"]["blocks"].as_u64().expect("a number"));
    (ages.collect(), young.sum())
}

/// Ages are true with clocks behind and ahead of the kernel's, in memleak, in the traced process, and in
/// both.
#[test]
fn time_namespaces() {
    if lacks(Feature::Namespaces) {
        return;
    }
    let path = compile(&directory("clocks"), "amounts/plain.c", &["-O1"]);
    let (path, blocks) = (path.to_str().expect("UTF-8"), BLOCKS.to_string());
    // Not to before the boot, which may be only some hundred seconds ago on a machine for tests.
    let uptime = std::fs::read_to_string("/proc/uptime").expect("it is there");
    let uptime: f64 = uptime
        .split(' ')
        .next()
        .expect("two fields")
        .parse()
        .expect("seconds");
    let behind = format!("-{:.0}", uptime / 2.0);
    for (of_memleak, of_target) in [
        (behind.as_str(), "0"),
        ("500000", "0"),
        ("0", "500000"),
        ("70000", behind.as_str()),
    ] {
        let mut command = shifted(of_target, path);
        let mut program = Program::spawn(command.arg(&blocks));
        program.expect("ready");
        let command = shifted(of_memleak, env!("CARGO_BIN_EXE_memleak"));
        let memleak = Memleak::attach_by(command, program.pid(), &["-a", "--format", "json"]);
        program.step("done");
        sleep(AGE);
        let report = memleak.finish_text();
        let (ages, young) = ages(&report);
        let are_true =
            ages.len() == BLOCKS && young == 0 && ages.iter().all(|age| (AGE..MOST_AGE).contains(age));
        assert!(are_true, "{of_memleak}, {of_target}: {young} young, {ages:?}");
        assert!(program.end().success());
    }
}
