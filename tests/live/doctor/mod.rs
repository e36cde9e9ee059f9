//! `memleak doctor`: its predictions agree with a trace, its warnings are true, and it changes nothing.

mod privileges;
mod report;
mod runtimes;

use std::fs;
use std::process::{Command, Output};
use std::time::Duration;

use memleak_test::attach_paths;
use memleak_test::exclusion::alone;
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{
    PATIENCE, Program, compile, compile_as, copy_program, directory, library, require_root, run_tool, source,
    stock,
};
use serde_json::Value;

const RELEASE: [&str; 2] = ["-O2", "-fomit-frame-pointer"];

fn doctor(arguments: &[&str]) -> Output {
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"));
    memleak.arg("doctor").args(arguments);
    end_of(memleak)
}

/// Runs `memleak doctor`, where `command` starts memleak.
fn doctor_by(mut command: Command) -> Output {
    command.arg("doctor");
    end_of(command)
}

fn end_of(command: Command) -> Output {
    assert_cmd::Command::from_std(command)
        .timeout(*PATIENCE)
        .output()
        .expect("memleak was built, and ends by itself")
}

/// Findings about a process, which can be traced.
#[track_caller]
fn examine(program: &Program) -> Value {
    require_root();
    let output = doctor(&["--format", "json", "-p", &program.pid().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    parse(&output)
}

#[track_caller]
fn parse(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error} in {output:?}"))
}

/// Findings about `topic`: level, text and remedy of each.
fn findings<'a>(of: &'a Value, topic: &str) -> Vec<(&'a str, &'a str, Option<&'a str>)> {
    let all = of.as_array().expect("findings").iter();
    let about = all.filter(|finding| finding["topic"] == topic);
    let text = |finding: &'a Value, field: &str| finding[field].as_str();
    about
        .map(|finding| {
            let (level, words) = (text(finding, "level"), text(finding, "text"));
            (
                level.expect("a level"),
                words.expect("a text"),
                text(finding, "remedy"),
            )
        })
        .collect()
}

/// With `--measure`, each way to trace a process is listed with its cost, and exactly one is recommended for
/// a process that allocates at a moderate rate. A process that announces its allocations has only the way by
/// which it is traced. Nothing stays attached.
#[test]
fn cost_of_each_way() {
    require_root();
    let python = stock("/usr/bin/python3", "python3");
    let script = "while True: kept = [bytearray(700) for _ in range(2000)]";
    let directory = directory("doctor-cost");
    let library = library(&directory).display().to_string();
    for (preloaded, ways) in [("", 4), (library.as_str(), 1)] {
        let mut command = Command::new(&python);
        command.args(["-c", script]).env("LD_PRELOAD", preloaded);
        let mut process = command.spawn().expect("python3");
        let pid = process.id().to_string();
        // Wait until it is in its loop: before that, nothing can be measured.
        std::thread::sleep(Duration::from_secs(1));
        let output = doctor(&["--format", "json", "-p", &pid, "--measure"]);
        process.kill().expect("it runs");
        process.wait().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let diagnosis = parse(&output);
        let costs = findings(&diagnosis["process"]["findings"], "cost");
        assert_eq!(costs.len(), ways, "{costs:?}");
        assert!(
            costs
                .iter()
                .all(|(_, text, _)| text.ends_with(" of one CPU") || text.ends_with("; recommended")),
            "{costs:?}"
        );
        let best = costs.iter().filter(|(level, ..)| *level == "ok").count();
        assert!(best <= 1 && (best == 1 || ways == 4), "{costs:?}");
    }
}

/// Processes can be traced as root on a supported kernel: every capability is there, except one that root may
/// lack, and a way to attach works, which was tried.
#[test]
fn this_machine() {
    require_root();
    let output = doctor(&["--format", "json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let diagnosis = parse(&output);
    let system = &diagnosis["system"];
    for (topic, count) in [
        ("kernel", 1),
        ("btf", 1),
        ("capability", 8),
        ("perf_event_paranoid", 1),
        ("lockdown", 1),
    ] {
        assert_eq!(findings(system, topic).len(), count, "{topic}: {system:#}");
    }
    let missing = findings(system, "capability").into_iter();
    let missing: Vec<_> = missing.filter(|finding| finding.0 != "ok").collect();
    let status = std::fs::read_to_string("/proc/self/status").expect("this process's");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = u64::from_str_radix(line.expect("capabilities").trim(), 16).expect("hexadecimal");
    match capabilities >> 24 & 1 {
        1 => assert!(missing.is_empty(), "{missing:?}"),
        _ => assert!(
            missing.len() == 1
                && missing[0].0 == "note"
                && missing[0].1.contains("CAP_SYS_RESOURCE is missing"),
            "{missing:?}"
        ),
    }
    assert_eq!(findings(system, "attach_perf")[0].0, "ok", "{system:#}");
    assert_eq!(diagnosis["process"], Value::Null);
    assert_ne!(diagnosis["verdict"]["level"], "fatal");
}

/// Each way to attach that the kernel should have is said to work, and no other; doctor says which one traces
/// use, and what a newer kernel has if that is not the cheapest.
#[test]
fn ways_to_attach() {
    require_root();
    let diagnosis = parse(&doctor(&["--format", "json"]));
    let system = &diagnosis["system"];
    let offered = attach_paths::attach_paths();
    for path in attach_paths::ALL {
        let found = findings(system, &format!("attach_{path}"));
        let [(level, text, remedy)] = found[..] else {
            panic!("{path}: {found:?}");
        };
        let works = offered.contains(&path);
        assert_eq!(level, if works { "ok" } else { "note" }, "{path}: {text}");
        assert!(works || remedy.is_some_and(|remedy| remedy.contains("Linux 6.")));
    }
    let found = findings(system, "attach");
    let [(level, text, remedy)] = found[..] else {
        panic!("{found:?}");
    };
    let (used, newer) = match offered[0] {
        "session" => ("session probes", None),
        "multi" => ("multi-probe links", Some("Linux 6.13")),
        _ => ("a perf event per probe", Some("Linux 6.6")),
    };
    assert_eq!(level, if newer.is_none() { "ok" } else { "note" }, "{text}");
    assert!(text.contains(&format!("traces use {used}")), "{text}");
    match (newer, remedy) {
        (None, None) => {}
        (Some(newer), Some(remedy)) => assert!(remedy.contains(newer), "{remedy}"),
        other => panic!("{other:?}"),
    }
}

/// Traces follow mapping calls as the doctor says: by the kernel's functions on those of Debian's kernels
/// that can, else by tracepoints.
#[test]
fn mapping_calls() {
    require_root();
    if lacks(Feature::Tracefs) {
        return;
    }
    let diagnosis = parse(&doctor(&["--format", "json"]));
    let found = findings(&diagnosis["system"], "mapping_calls");
    let [(level, text, _)] = found[..] else {
        panic!("{found:?}");
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has one");
    let is_debians = std::env::var("KERNEL_WAYS").is_ok_and(|ways| !ways.is_empty());
    if is_debians {
        let expected = cfg!(target_arch = "x86_64") || !release.starts_with("6.1.");
        assert_eq!(level == "ok", expected, "{release}: {text}");
    }
    let by = if level == "ok" {
        "their functions"
    } else {
        "tracepoints"
    };
    let program = Program::spawn(Command::new("sleep").arg("1000"));
    let memleak = Memleak::attach(program.pid(), &["--mmap", "-v"]);
    let (_, messages) = memleak.finish_with_messages();
    let said = format!("mapping calls are followed by {by}");
    assert!(
        messages.iter().any(|message| message.contains(&said)),
        "{messages:?}"
    );
}

/// The doctor's findings about each module and probe are what the report of a trace says; and the program's
/// code is untouched.
#[test]
fn doctor_predicts_the_trace() {
    // Other tests' probes are in every process.
    let _alone = alone();
    let path = compile(&directory("doctor-prediction"), "amounts/plain.c", &RELEASE);
    let mut program = Program::start(&path, &["50"]);
    program.expect("ready");
    let predicted = examine(&program);
    assert_eq!(own_uprobes(program.pid()), 0, "nothing stays");

    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    let modules = predicted["process"]["modules"].as_array().expect("modules");
    assert!(!report.unwinding.modules.is_empty());
    for found in &report.unwinding.modules {
        let path = found.module.as_deref().expect("all frames lie in modules");
        let predicted = modules.iter().find(|module| module["module"] == path);
        let predicted = predicted.unwrap_or_else(|| panic!("{path} is not predicted"));
        for (field, value) in [
            ("code_bytes", found.code_bytes),
            ("covered_bytes", found.covered_bytes),
            ("rows", found.rows),
            ("unsupported_rows", found.unsupported_rows),
            ("table_bytes", found.table_bytes),
        ] {
            assert!(value.is_some(), "{field} of {path}");
            assert_eq!(predicted[field].as_u64(), value, "{field} of {path}");
        }
        assert_eq!(predicted["build_id"].as_str(), found.build_id.as_deref());
    }
    let probes = predicted["process"]["probes"].as_array().expect("probes");
    for function in ["malloc", "calloc", "realloc", "free", "posix_memalign"] {
        assert!(
            probes.iter().any(|probe| probe["function"] == function),
            "{function}: {probes:#?}"
        );
    }
    assert!(program.end().success());
}

/// Returns the number of mappings that the kernel has made for return probes.
fn own_uprobes(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    maps.lines().filter(|line| line.ends_with("[uprobes]")).count()
}

/// A library without CFI is warned of by name, with what to do.
#[test]
fn library_without_cfi() {
    let directory = directory("doctor-no_cfi");
    let library = directory.join("libbare.so");
    let bare = [
        "-O2",
        "-fPIC",
        "-shared",
        "-nostartfiles",
        "-fno-asynchronous-unwind-tables",
    ];
    run_tool(
        Command::new("gcc")
            .arg("-o")
            .arg(&library)
            .arg(source("stacks/lazy_library.c"))
            .args(bare),
    );
    let path = compile(
        &directory,
        "stacks/lazy.c",
        &["-O2", library.to_str().expect("UTF-8")],
    );
    let program = Program::start(&path, &[]);
    program.expect("ready");
    let diagnosis = examine(&program);
    let modules = findings(&diagnosis["process"]["findings"], "module");
    let (level, _, remedy) = modules
        .iter()
        .find(|(_, text, _)| text.contains("libbare.so: no CFI"))
        .unwrap_or_else(|| panic!("{modules:#?}"));
    assert_eq!(*level, "warning");
    assert!(remedy.is_some_and(|remedy| remedy.contains("-fasynchronous-unwind-tables")));
    let verdict = diagnosis["verdict"]["text"].as_str().expect("a verdict");
    assert!(
        verdict.contains("can be traced, but: ") && verdict.contains("libbare.so"),
        "{verdict}"
    );
}

/// Code that was generated at run time is pointed out.
#[test]
fn generated_code() {
    let python = stock("/usr/bin/python3", "python3");
    let script = "import mmap, sys\ncode = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)\nprint('ready', flush=True)\nsys.stdin.readline()";
    let program = Program::start(&python, &["-c", script]);
    program.expect("ready");
    let diagnosis = examine(&program);
    let found = findings(&diagnosis["process"]["findings"], "anonymous_code");
    let [(level, text, Some(_))] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(level, "note");
    assert!(text.starts_with("1 mapping, 8.0 KiB"), "{text}");
}

/// Checks that `output` is a diagnosis with status 2 whose verdict says all of `parts`.
#[track_caller]
fn check_cannot_trace(output: &Output, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let verdict = text.lines().last().unwrap_or_default();
    assert!(verdict.starts_with("Verdict: cannot trace: "), "{text}");
    for part in parts {
        assert!(verdict.contains(part), "no {part:?} in {verdict}");
    }
}

/// Processes that cannot be traced are a finding like any other, and the status.
#[test]
fn processes_that_cannot_be_traced() {
    require_root();
    check_cannot_trace(&doctor(&["-p", "2"]), &["kernel thread"]);
    let path = compile_as(
        &directory("doctor-no_allocator").join("plain"),
        "amounts/plain.c",
        &["-O2", "-static", "-s"],
    );
    let program = Program::start(&path, &[]);
    program.expect("ready");
    check_cannot_trace(
        &doctor(&["-p", &program.pid().to_string()]),
        &["nothing to probe", "no allocator"],
    );
}

/// A doctor without privileges still looks at everything else, and names what is missing and what to do.
#[test]
fn without_privileges() {
    require_root();
    let copy = std::env::temp_dir().join(format!("memleak-doctor-{}", std::process::id()));
    copy_program(env!("CARGO_BIN_EXE_memleak"), &copy);
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["doctor", "-p", &std::process::id().to_string()])
        .output();
    fs::remove_file(&copy).expect("our own file");
    let output = output.expect("setpriv (apt-get install util-linux)");
    let needed = [
        "CAP_BPF is missing",
        "CAP_PERFMON is missing",
        "CAP_SYS_PTRACE is missing",
    ];
    check_cannot_trace(&output, &needed);
    let text = String::from_utf8_lossy(&output.stdout);
    for part in [
        "setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep",
        "sudo memleak",
        "no way to attach works",
        "kernel: Linux",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Each finding is one line, and every warning and worse has a remedy or states it in its text.
#[test]
fn one_line_per_finding() {
    let path = compile(&directory("doctor-lines"), "amounts/plain.c", &RELEASE);
    let program = Program::start(&path, &[]);
    program.expect("ready");
    let pid = program.pid().to_string();
    let text = String::from_utf8(doctor(&["-p", &pid]).stdout).expect("UTF-8");
    let json = examine(&program);
    let count = |findings: &Value| findings.as_array().expect("findings").len();
    let all = count(&json["system"]) + count(&json["process"]["findings"]);
    // The headings of the two parts, and the verdict.
    assert_eq!(text.lines().count(), all + 3, "{text}");
    assert!(
        text.contains(&format!("Process {pid} plain ({})", path.display())),
        "{text}"
    );
}
