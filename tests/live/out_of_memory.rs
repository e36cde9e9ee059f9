//! The kernel kills the traced program for lack of memory: the last report is made, gives the reason, and has
//! the leak; memleak survives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use memleak_test::cgroup::{Cgroup, memory_controller};
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_as, directory, end_if_only_compiled, require_root};
use memleak_test::report::Report;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const MIB: u64 = 1 << 20;

#[track_caller]
fn build(name: &str) -> PathBuf {
    let path = directory(&format!("out_of_memory-{name}")).join(name);
    compile_as(&path, "amounts/commanded.c", &RELEASE)
}

#[track_caller]
fn start(path: &Path) -> Program {
    let program = Program::start(path, &[]);
    program.expect("ready");
    program
}

fn name(test: &str) -> String {
    format!("memleak-{test}-{}", std::process::id())
}

/// Returns the kernel's count of kills in a cgroup or, if that has none of its own (version 2), in the
/// nearest one above that has.
#[track_caller]
fn kills(cgroup: &Cgroup) -> u64 {
    let (_, limit) = memory_controller();
    let file = match limit {
        "memory.max" => "memory.events",
        _ => "memory.oom_control",
    };
    let mut places = cgroup.path().ancestors().map(|path| path.join(file));
    let text = places
        .find_map(|path| fs::read_to_string(path).ok())
        .expect("the kernel's file");
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.expect("the count").trim().parse().expect("a number")
}

/// Returns the memory that was short when the only process of a report was killed, as the report says.
#[track_caller]
fn lack(report: &str) -> Value {
    let report: Value = serde_json::from_str(report).expect("JSON");
    let target = &report["targets"][0];
    assert_eq!(target["ended"], "out_of_memory", "{target}");
    target["lack"].clone()
}

/// A program that leaks until the limit of a cgroup above its own is reported, with its outstanding blocks.
#[test]
fn limit_of_a_cgroup() {
    let path = build("limited-target");
    let cgroup = Cgroup::with_memory_limit(&name("limit"), 150 * MIB);
    let inner = Cgroup::make(cgroup.path(), "inner");
    let mut program = start(&path);
    inner.add(&program);
    let memleak = Memleak::attach(program.pid(), &[]);
    program.send_line("!");
    program.await_end();
    assert_eq!(kills(&inner), 1);
    let line = memleak.report_line();
    let (reports, messages) = memleak.rest();
    assert_eq!(reports.len(), 0);
    let lack = lack(&line);
    let (mount, _) = memory_controller();
    let path = lack["cgroup"].as_str().expect("a path").trim_start_matches('/');
    assert_eq!(
        (&lack["of"], mount.join(path)),
        (&"cgroup".into(), cgroup.path().to_owned())
    );
    assert_eq!(lack["limit_bytes"], 150 * MIB, "{lack}");
    let report = Report::parse(&line);
    let leak = report.only_through("grow");
    // All but what the C library, the program itself and its tables take.
    assert!((130..=150).contains(&(leak.outstanding.bytes / MIB)), "{leak:?}");
    assert_eq!(leak.end, "complete");
    let makeup = leak.makeup.as_ref().expect("its blocks are known");
    let of_sizes: u64 = makeup.sizes.iter().map(|class| class.amount.bytes).sum();
    assert_eq!(of_sizes, leak.outstanding.bytes, "{makeup:?}");
    let expected = format!(
        "the kernel killed limited-target ({}) for lack of memory: cgroup /",
        program.pid()
    );
    assert!(
        messages
            .iter()
            .any(|line| line.contains(&expected) && line.contains("had reached its limit of 150.0 MiB")),
        "{messages:#?}"
    );
    drop(inner);
}

/// A program that memleak has started and that is killed has the status that shells give it, and text says
/// why it ended.
#[test]
fn started_program() {
    let path = build("started-target");
    end_if_only_compiled();
    require_root();
    let cgroup = Cgroup::with_memory_limit(&name("started"), 100 * MIB);
    let procs = cgroup.path().join("cgroup.procs");
    let command = format!("echo $$ > {} && exec {} <<< '!'", procs.display(), path.display());
    let report = path.with_extension("txt");
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"));
    let memleak = memleak
        .arg("--output")
        .arg(&report)
        .args(["--", "bash", "-c", &command]);
    let status = memleak.stdin(Stdio::null()).status().expect("memleak was built");
    let text = fs::read_to_string(report).expect("a report");
    assert_eq!(status.code(), Some(137), "{text}");
    let mut lines = text.lines();
    assert!(
        lines
            .next()
            .is_some_and(|line| line.contains(" processes, 2 ended, ")),
        "{text}"
    );
    let line = lines.next().unwrap_or_default();
    assert!(line.starts_with("  The kernel killed started-target ("), "{text}");
    assert!(line.contains(" had reached its limit of 100.0 MiB"), "{text}");
    assert!(
        text.contains(", outstanding when it was killed for lack of memory"),
        "{text}"
    );
    assert!(text.contains("grow+"), "{text}");
}

/// A program that memleak starts is as likely to be killed as if its caller had started it; memleak itself
/// never is.
#[test]
fn scores() {
    let path = build("score-target");
    end_if_only_compiled();
    if lacks(Feature::LowerOomScores) {
        return;
    }
    require_root();
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command
        .arg("--output")
        .arg(path.with_extension("txt"))
        .arg("--")
        .arg(&path);
    let mut memleak = Program::spawn(&mut command);
    memleak.expect("ready");
    let score = |pid: &str| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
    let all = fs::read_dir("/proc").expect("proc").flatten();
    let mut started = all
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|pid| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm == "score-target\n")
        });
    assert_eq!(score(&started.next().expect("the program")), score("self"));
    let own: i32 = score(&memleak.pid().to_string())
        .trim()
        .parse()
        .expect("a number");
    assert_eq!(own, -1000);
    assert!(memleak.end().success());
}

/// In the same cgroup, the kernel kills the program also if memleak has more memory: it is stopped meanwhile,
/// as it needs more for the report.
#[test]
fn memleak_with_more_memory() {
    let path = build("smaller-target");
    end_if_only_compiled();
    if lacks(Feature::LowerOomScores) {
        return;
    }
    require_root();
    let (_, limit) = memory_controller();
    let cgroup = Cgroup::with_memory_limit(&name("more"), 4096 * MIB);
    let mut program = start(&path);
    cgroup.add(&program);
    let memleak = attach_in(&cgroup, &program);
    let usage = match limit {
        "memory.max" => "memory.current",
        _ => "memory.usage_in_bytes",
    };
    let used = fs::read_to_string(cgroup.path().join(usage)).expect("the kernel's file");
    let used: u64 = used.trim().parse().expect("a number");
    cgroup.limit_to(used + 16 * MIB);
    let resident = resident(&memleak);
    memleak.signal("STOP");
    end_by_kill(&mut program, &cgroup);
    cgroup.limit_to(4096 * MIB);
    memleak.signal("CONT");
    let leaked = leaked(memleak);
    assert!(leaked > 0 && leaked < resident, "{leaked} of {resident} MiB");
}

/// In the same cgroup, and in its neighbour below the same limit, the kernel kills the program, which has
/// more memory, and memleak makes the last report.
#[test]
fn memleak_within_the_same_limit() {
    let path = build("same-target");
    end_if_only_compiled();
    require_root();
    for is_same in [true, false] {
        let cgroup = Cgroup::with_memory_limit(&name("same"), 600 * MIB);
        let neighbour = Cgroup::make(cgroup.path(), "neighbour");
        let mut program = start(&path);
        let other = Cgroup::make(cgroup.path(), "memleak");
        neighbour.add(&program);
        let memleak = attach_in(if is_same { &neighbour } else { &other }, &program);
        let resident = resident(&memleak);
        end_by_kill(&mut program, &neighbour);
        let leaked = leaked(memleak);
        assert!(leaked > 200 && leaked > resident, "{leaked} and {resident} MiB");
    }
}

/// Starts memleak in this cgroup.
#[track_caller]
fn attach_in(cgroup: &Cgroup, program: &Program) -> Memleak {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
    command
        .arg(cgroup.path().join("cgroup.procs"))
        .arg(env!("CARGO_BIN_EXE_memleak"));
    Memleak::attach_by(command, program.pid(), &[])
}

/// Resident memory in MiB.
#[track_caller]
fn resident(memleak: &Memleak) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", memleak.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.expect("a number") / 1024
}

/// Has the program leak until it is killed, and checks that no other process is.
#[track_caller]
fn end_by_kill(program: &mut Program, cgroup: &Cgroup) {
    program.send_line("!");
    program.await_end();
    assert_eq!(kills(cgroup), 1);
}

/// Returns the MiB that the program has leaked, by the last report of memleak, which survives and ends by
/// itself.
#[track_caller]
fn leaked(memleak: Memleak) -> u64 {
    let line = memleak.report_line();
    assert_eq!(memleak.rest().0.len(), 0);
    assert_eq!(lack(&line)["of"], "cgroup");
    Report::parse(&line).only_through("grow").outstanding.bytes / MIB
}
