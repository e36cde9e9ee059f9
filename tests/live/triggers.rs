//! Conditions for the start and for reports: nothing is attached before `--start-when` is true, and reports
//! are made when `--report-when` becomes true.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use memleak_test::cgroup::{Cgroup, memory_controller};
use memleak_test::memleak::{Memleak, spawn};
use memleak_test::program::{
    Lines, Program, compile_as, directory, end_if_only_compiled, require_root, signal,
};
use memleak_test::report::Report;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
const MIB: f64 = 1048576.0;

#[track_caller]
fn build(test: &str, name: &str) -> PathBuf {
    let path = directory(&format!("triggers-{test}")).join(name);
    compile_as(&path, "amounts/commanded.c", &RELEASE)
}

#[track_caller]
fn start(path: &std::path::Path) -> Program {
    let program = Program::start(path, &[]);
    program.expect("ready");
    program
}

/// Has the program grow by this many MiB, or shrink to nothing.
#[track_caller]
fn command(program: &mut Program, line: &str) {
    program.send_line(line);
    program.expect("done");
}

/// A memleak that waits for its condition.
struct Waiting {
    child: Child,
    reports: Lines,
    messages: Lines,
}

impl Waiting {
    #[track_caller]
    fn start(arguments: &[&str]) -> Self {
        end_if_only_compiled();
        require_root();
        let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
        let (child, reports, messages) = spawn(command.args(["--format", "json"]).args(arguments));
        let mut waiting = Self {
            child,
            reports,
            messages,
        };
        waiting.await_message("nothing is attached until then");
        waiting
    }

    #[track_caller]
    fn await_message(&mut self, part: &str) -> String {
        let mut seen = Vec::new();
        while let Some(line) = self.messages.next() {
            if line.contains(part) {
                return line;
            }
            seen.push(line);
        }
        panic!("no message `{part}`: {seen:#?}");
    }

    /// Returns the kinds of kernel objects that it has open, as the kernel names them: of BPF and of perf
    /// events.
    fn kernel_objects(&self) -> Vec<String> {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs");
        let names = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names
            .filter(|name| name.contains("bpf") || name.contains("perf"))
            .collect()
    }

    /// Waits for its end. Returns its status, its reports and its further messages.
    #[track_caller]
    fn end(mut self) -> (Option<i32>, Vec<String>, String) {
        let reports = self.reports.rest();
        let status = self.child.wait().expect("a child of ours");
        (status.code(), reports, self.messages.rest().join("\n"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the only condition of a report, its value, its unit and its process.
#[track_caller]
fn only_condition(report: &str) -> (String, f64, String, Option<u64>) {
    let report: Value = serde_json::from_str(report).expect("JSON");
    let reason = &report["reason"];
    assert_eq!(reason["kind"], "conditions", "{reason}");
    let [condition] = &reason["conditions"].as_array().expect("a list")[..] else {
        panic!("{reason}");
    };
    let text = |name: &str| condition[name].as_str().expect("a text").to_owned();
    let value = condition["value"].as_f64().expect("a number");
    (text("condition"), value, text("unit"), condition["pid"].as_u64())
}

#[track_caller]
fn kind(report: &str) -> String {
    let report: Value = serde_json::from_str(report).expect("JSON");
    report["reason"]["kind"].as_str().unwrap_or("none").to_owned()
}

/// Bytes that are outstanding from `grow`.
fn grown(report: &Report) -> f64 {
    report.only_through("grow").outstanding.bytes as f64
}

/// Nothing is loaded or attached while a process is small; as soon as it is large, it is traced, and what it
/// allocates from then on is in the report.
#[test]
fn starts_when_large() {
    let mut program = start(&build("start", "start-target"));
    let pid = program.pid().to_string();
    let mut memleak = Waiting::start(&["-p", &pid, "--start-when", "rss>64MiB", "1d"]);
    command(&mut program, "+20");
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(memleak.kernel_objects(), Vec::<String>::new());
    command(&mut program, "+50");
    let message = memleak.await_message("starting because rss>64MiB: 7");
    assert!(message.ends_with(&format!(" MiB in process {pid}")), "{message}");
    memleak.await_message("tracing start-target");
    assert!(!memleak.kernel_objects().is_empty());
    command(&mut program, "+3");
    signal(memleak.child.id(), "INT");
    let (status, reports, messages) = memleak.end();
    assert_eq!((status, reports.len()), (Some(0), 1), "{messages}");
    assert_eq!(grown(&Report::parse(&reports[0])), 3.0 * MIB);
    assert_eq!(kind(&reports[0]), "none");
}

/// One large process of several with a name starts the trace of all, also if it came during the wait; with
/// `--wait`, there may be none for a while.
#[test]
fn starts_when_one_is_large() {
    let path = build("one", "one-of-targets");
    let mut memleak = {
        let first = start(&path);
        let memleak = Waiting::start(&[
            "--wait",
            "-p",
            "one-of-targets",
            "--start-when",
            "anon>=32MiB",
            "1d",
        ]);
        drop(first);
        memleak
    };
    // For a while there is none.
    thread::sleep(Duration::from_millis(1500));
    let mut small = start(&path);
    let mut large = start(&path);
    command(&mut small, "+20");
    command(&mut large, "+20");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(memleak.kernel_objects(), Vec::<String>::new());
    command(&mut large, "+20");
    memleak.await_message(&format!(" MiB in process {}", large.pid()));
    memleak.await_message("tracing one-of-targets");
    command(&mut small, "+2");
    command(&mut large, "+1");
    signal(memleak.child.id(), "INT");
    let (status, reports, messages) = memleak.end();
    assert_eq!(status, Some(0), "{messages}");
    let report = Report::parse(&reports[0]);
    let mut found: Vec<_> = report
        .through("grow")
        .iter()
        .map(|stack| (stack.pid, stack.outstanding.bytes >> 20))
        .collect();
    found.sort_unstable();
    let mut expected = [(small.pid(), 2), (large.pid(), 1)];
    expected.sort_unstable();
    assert_eq!(found, expected, "{messages}");
}

/// Growth counts over recent time, whatever there was before.
#[test]
fn starts_when_growing() {
    let mut program = start(&build("growing", "growing-target"));
    let pid = program.pid().to_string();
    command(&mut program, "+200");
    let mut memleak = Waiting::start(&["-p", &pid, "--start-when", "growth>20MiB/min", "1d"]);
    // Ten values are needed.
    for _ in 0..4 {
        thread::sleep(Duration::from_secs(3));
        assert_eq!(memleak.messages.try_next(), None);
    }
    for _ in 0..80 {
        command(&mut program, "+1");
        thread::sleep(Duration::from_millis(500));
        if let Some(message) = memleak.messages.try_next() {
            assert!(
                message.contains("starting because growth>20MiB/min: "),
                "{message}"
            );
            memleak.await_message("tracing growing-target");
            return;
        }
    }
    panic!("it grew by 120 MiB/min, for 40 s");
}

/// The wait ends in one line, with status 2, when the process ends, and when memleak is asked to end.
#[test]
fn waits_that_come_to_nothing() {
    let path = build("nothing", "nothing-target");
    let flags = ["--start-when", "rss>1GiB"];
    let mut program = start(&path);
    let pid = program.pid().to_string();
    let memleak = Waiting::start(&[&["-p", &pid][..], &flags].concat());
    program.end();
    let (status, reports, messages) = memleak.end();
    let expected = format!("memleak: process {pid} ended before rss>1GiB: nothing was traced");
    assert_eq!((status, reports.len(), messages), (Some(2), 0, expected));

    let program = start(&path);
    let memleak = Waiting::start(&[&["-p", "nothing-target"][..], &flags].concat());
    signal(memleak.child.id(), "INT");
    let (status, reports, messages) = memleak.end();
    let expected = "memleak: ended while waiting for rss>1GiB: nothing was traced";
    assert_eq!((status, reports.len(), &messages[..]), (Some(2), 0, expected));

    let memleak = Waiting::start(&[&["-p", "nothing-target"][..], &flags].concat());
    drop(program);
    let (status, _, messages) = memleak.end();
    let expected = "memleak: all processes ended before rss>1GiB: nothing was traced";
    assert_eq!((status, &messages[..]), (Some(2), expected));
}

/// A share is that of the limit with the least room, among all cgroups that the process is in, without file
/// cache.
#[test]
fn shares_of_limits() {
    let path = build("shares", "shares-target");
    let name = format!("memleak-triggers-{}", std::process::id());
    let cgroup = Cgroup::with_memory_limit(&name, 200 << 20);
    let inner = Cgroup::make(cgroup.path(), "inner");
    let mut program = start(&path);
    inner.add(&program);
    let pid = program.pid().to_string();
    let mut memleak = Waiting::start(&[
        "-p",
        &pid,
        "--start-when",
        "cgroup>50%",
        "--report-when",
        "cgroup>75%",
        "0.1",
    ]);
    command(&mut program, "+80");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(memleak.kernel_objects(), Vec::<String>::new());
    command(&mut program, "+30");
    memleak.await_message("starting because cgroup>50%: 5");
    memleak.await_message("tracing shares-target");
    command(&mut program, "+20");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(memleak.reports.try_next(), None);
    command(&mut program, "+30");
    let report = memleak.reports.next().expect("a report");
    let (condition, value, unit, process) = only_condition(&report);
    assert_eq!(
        (&condition[..], &unit[..], process),
        ("cgroup>75%", "percent", Some(program.pid().into()))
    );
    // memleak looks while the program grows.
    assert!(value > 75.0 && value < 85.0, "{value}");
    signal(memleak.child.id(), "INT");
    let (status, reports, messages) = memleak.end();
    assert_eq!(status, Some(0), "{messages}");
    assert_eq!(kind(reports.last().expect("the last report")), "end");
    drop(program);
    drop(inner);
}

/// A report is made when the condition becomes true, not again while it is, and again after it was false;
/// COUNT counts these reports.
#[test]
fn reports_when_more_is_outstanding() {
    let mut program = start(&build("outstanding", "outstanding-target"));
    let flags = ["--report-when", "outstanding>10MiB"];
    let mut memleak = Memleak::attach_reporting(program.pid(), &flags, &["0.1", "2"]);
    command(&mut program, "+9");
    thread::sleep(Duration::from_millis(500));
    command(&mut program, "+3");
    memleak.await_message("reporting because outstanding>10MiB: 1");
    let first = memleak.report_line();
    let (condition, value, unit, process) = only_condition(&first);
    assert_eq!(
        (&condition[..], &unit[..], process),
        ("outstanding>10MiB", "bytes", None)
    );
    assert!(value > 10.0 * MIB && value <= 12.0 * MIB, "{value}");
    assert!(grown(&Report::parse(&first)) >= value);
    command(&mut program, "+5");
    thread::sleep(Duration::from_millis(500));
    command(&mut program, "-");
    thread::sleep(Duration::from_millis(500));
    command(&mut program, "+11");
    // The second is the last; no report was made while the condition stayed true.
    let (second, status) = memleak.wait();
    assert!(status.success());
    assert!(grown(&second) > 10.0 * MIB && grown(&second) <= 11.0 * MIB);
}

/// The report at the end is made in addition, and says so; text has the reason below its first line.
#[test]
fn the_last_report_is_made_besides() {
    let mut program = start(&build("besides", "besides-target"));
    let pid = program.pid();
    let flags = [
        "--report-when",
        "rss>40MiB",
        "--report-when",
        "growth>1GiB/s",
        "--format",
        "text",
    ];
    let mut memleak = Memleak::attach_reporting(pid, &flags, &["0.1", "5"]);
    command(&mut program, "+50");
    memleak.await_message("reporting because rss>40MiB: ");
    thread::sleep(Duration::from_millis(300));
    let text = memleak.finish_text();
    let reasons: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("  Reported because "))
        .collect();
    let [first, last] = &reasons[..] else {
        panic!("{text}");
    };
    assert!(first.starts_with("  Reported because rss>40MiB: "), "{text}");
    assert!(first.ends_with(&format!(" MiB in process {pid}")), "{text}");
    assert_eq!(*last, "  Reported because the trace ended");
    assert!(text.starts_with('['), "{text}");
}

/// Mappings and the kernel's own allocations can be outstanding, too.
#[test]
fn outstanding_in_other_modes() {
    let mut program = start(&build("modes", "modes-target"));
    let flags = ["--mmap", "--report-when", "outstanding>=20MiB"];
    let memleak = Memleak::attach_reporting(program.pid(), &flags, &["0.1", "1"]);
    command(&mut program, "+15");
    thread::sleep(Duration::from_millis(500));
    command(&mut program, "+10");
    let (report, status) = memleak.wait();
    assert!(status.success());
    let mapped: u64 = report
        .through("grow")
        .iter()
        .map(|stack| stack.outstanding.bytes)
        .sum();
    assert!(mapped >= 20 << 20, "{mapped}");

    let flags = ["--report-when", "outstanding>1KiB", "--duration", "60"];
    let memleak = Memleak::attach_to_kernel(&flags, "0.2");
    let (condition, value, ..) = only_condition(&memleak.report_line());
    assert!(condition == "outstanding>1KiB" && value > 1024.0, "{value}");
    assert_eq!(memleak.finish_text().lines().count(), 1);
}

/// A share of a limit that does not exist can never be exceeded: that is an error, with what to do.
#[test]
fn no_limit() {
    let program = start(&build("unlimited", "unlimited-target"));
    end_if_only_compiled();
    require_root();
    let (mount, _) = memory_controller();
    let cgroup = Cgroup::make(&mount, &format!("memleak-unlimited-{}", program.pid()));
    cgroup.add(&program);
    let pid = program.pid().to_string();
    for flag in ["--start-when", "--report-when"] {
        let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["-p", &pid, flag, "cgroup>80%"])
            .stdin(Stdio::null())
            .output()
            .expect("memleak was built");
        let text = String::from_utf8_lossy(&output.stderr);
        let expected =
            format!("memleak: `cgroup>80%` cannot come true: process {pid} is in no cgroup with a limit");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.lines()
                .last()
                .is_some_and(|line| line.starts_with(&expected)),
            "{text}"
        );
    }
    drop(program);
}
