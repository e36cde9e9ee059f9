//! JSON output against the schemas in `docs/`, by a validator that knows nothing of memleak (Debian's
//! python3-jsonschema): a recording that is in the tree, and real traces. Those need root.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use memleak_test::machine::{Feature, lacks};
use memleak_test::program::{Program, compile, directory, require_root, stock};
use serde_json::Value;

const RELEASE: [&str; 3] = ["-O2", "-g", "-fomit-frame-pointer"];
/// A recording of three reports that a test of recordings made.
const RECORDING: &str = "tests/fuzz/seeds/recording/leaker.memleak";

/// Runs the validator on `lines` and a schema of `docs/`.
fn validate(schema: &str, lines: &str) -> Output {
    let python = stock("/usr/bin/python3", "python3");
    let mut command = Command::new(python);
    command.args(["tests/validate_json.py", schema]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut validator = command.spawn().expect("python3 starts");
    let mut input = validator.stdin.take().expect("a pipe");
    // A validator that ends early says why.
    _ = input.write_all(lines.as_bytes());
    drop(input);
    validator.wait_with_output().expect("it ends")
}

#[track_caller]
fn check(schema: &str, lines: &str) {
    let output = validate(schema, lines);
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(
        output.status.success(),
        "{schema}: {}{} (apt-get install python3-jsonschema)",
        texts[0],
        texts[1]
    );
}

/// Standard output of memleak, which must succeed.
#[track_caller]
fn memleak(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(arguments)
        .output();
    let output = output.expect("memleak was built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).expect("JSON")
}

/// All reports of a recording, their difference and their trend.
#[test]
fn recorded_reports() {
    let all = memleak(&["report", RECORDING, "--all", "--format", "json"]);
    check("report.schema.json", &all);
    let first = format!("{RECORDING}:1");
    check(
        "diff.schema.json",
        &memleak(&["diff", &first, RECORDING, "--format", "json"]),
    );
    check(
        "trend.schema.json",
        &memleak(&["trend", RECORDING, "--format", "json"]),
    );
    check("doctor.schema.json", &memleak(&["doctor", "--format", "json"]));
}

/// Tables of processes, with some that have too few samples, and with the others summed up.
#[test]
fn tables_of_processes() {
    let tables = memleak(&["top", "--format", "json", "0.4", "2", "-T", "5"]);
    let all = memleak(&["top", "--format", "json", "2", "1"]);
    check("top.schema.json", &(tables.clone() + &all));
    assert_eq!(tables.lines().count(), 2);
    let first = parsed(tables.lines().next().unwrap_or_default());
    assert!(
        first["processes"]
            .as_array()
            .is_some_and(|shown| shown.len() <= 5),
        "{first}"
    );
    let trends =
        ["grows", "shrinks", "none", "early"].map(|trend| first["trends"][trend].as_u64().unwrap_or(0));
    let shown = first["processes"].as_array().map_or(0, Vec::len) as u64;
    assert_eq!(
        trends.iter().sum::<u64>(),
        shown + first["others"]["processes"].as_u64().unwrap_or(0)
    );
}

type Change = fn(&mut Value);

/// A field more, a field less, another type and an unknown end are violations: the validator looks at all of
/// it.
#[test]
fn violations_are_found() {
    let report = parsed(&memleak(&["report", RECORDING, "--format", "json"]));
    let changes: [(&str, Change); 6] = [
        ("nothing", |_| {}),
        ("unknown field", |report| report["unknown"] = 1.into()),
        ("missing field", |report| {
            report.as_object_mut().expect("an object").remove("self");
        }),
        ("another type", |report| report["duration_ns"] = "1 s".into()),
        ("unknown field of a frame", |report| {
            report["stacks"][0]["frames"][0]["unknown"] = Value::Null;
        }),
        ("unknown end", |report| {
            report["stacks"][0]["end"] = "somewhere".into();
        }),
    ];
    for (name, change) in changes {
        let mut changed = report.clone();
        change(&mut changed);
        let output = validate("report.schema.json", &format!("{changed}\n"));
        assert_eq!(
            output.status.code(),
            Some(i32::from(name != "nothing")),
            "{name}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
}

/// Each end has its name in the schema, and the schema has no others.
#[test]
fn schema_lists_all_ends_of_walks() {
    let schema = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/report.schema.json"));
    let schema = parsed(&schema.expect("docs/report.schema.json"));
    let names = schema["$defs"]["end"]["enum"].as_array().expect("a list").iter();
    let mut named: Vec<_> = names.map(|name| name.as_str().expect("a name")).collect();
    let mut ends: Vec<_> = unwind_tables::walk::End::ALL
        .iter()
        .map(|end| end.name())
        .collect();
    named.sort_unstable();
    ends.sort_unstable();
    assert_eq!(named, ends);
}

/// Real traces of a process: all blocks, single blocks, samples, a limit, totals only, frame pointers, calls
/// one by one.
#[test]
fn traced_processes() {
    require_root();
    let program = compile(
        &directory("json_schema-processes"),
        "amounts/growing.cpp",
        &RELEASE,
    );
    let program = Program::start(&program, &["growing", "0"]);
    let pid = program.pid().to_string();
    let trace = |flags: &[&str], reports: &str| {
        let before = ["-q", "-p", &pid, "--format", "json"];
        memleak(&[&before[..], flags, &["0.3", reports]].concat())
    };
    for flags in [
        &["-a"][..],
        &["-a", "--sample-bytes", "1K"],
        &["-s", "3"],
        &["--max-overhead", "0.5"],
        &["-C"],
        &["-z", "100"],
        &["--unwind", "fp", "--perf-max-stack-depth", "2"],
    ] {
        let reports = trace(flags, "3");
        assert_eq!(reports.lines().count(), 3, "{flags:?}");
        check("report.schema.json", &reports);
        let last = parsed(reports.lines().last().unwrap_or_default());
        assert!(
            last["stacks"].as_array().is_some_and(|stacks| stacks.len() > 1),
            "{flags:?}"
        );
    }
    let lines = trace(&["-t"], "1");
    let (calls, report) = lines.trim_end().rsplit_once('\n').expect("calls, and a report");
    check("call.schema.json", calls);
    check("report.schema.json", report);
    check(
        "doctor.schema.json",
        &memleak(&["doctor", "-p", &pid, "--format", "json"]),
    );
}

/// Verdicts: in reports, with holders, and without a trace.
#[test]
fn verdicts() {
    require_root();
    let directory = directory("json_schema-verdicts");
    let path = compile(&directory, "verdicts/lost_objects.cpp", &["-std=c++17", "-O1"]);
    let program = Program::start(&path, &[]);
    program.expect("ready");
    let pid = program.pid().to_string();
    let found = memleak(&["verdict", "-a", "-p", &pid, "--format", "json"]);
    check("verdict.schema.json", &found);
    let diagnosis = memleak(&["why", "-p", &pid, "7s", "--format", "json"]);
    check("why.schema.json", &diagnosis);
    assert!(
        parsed(&found)["lost"]
            .as_array()
            .is_some_and(|lost| lost.len() > 1)
    );
    let file = directory.join("reports.json");
    let [program, file] = [&path, &file].map(|path| path.to_str().expect("UTF-8"));
    memleak(&[
        "--verdict",
        "--format",
        "json",
        "--force",
        "--output",
        file,
        "--",
        program,
    ]);
    let reports = fs::read_to_string(file).expect("reports");
    check("report.schema.json", &reports);
    let last = parsed(reports.lines().last().unwrap_or_default());
    assert!(
        last["verdict"]["definitely_lost"]["blocks"].as_u64() > Some(40),
        "{last}"
    );
}

/// Mappings, blocks and pages, of a program with children that execute others.
#[test]
fn traced_mappings_and_children() {
    require_root();
    let directory = directory("json_schema-mappings");
    let file = directory.join("reports.json");
    let path = file.to_str().expect("UTF-8");
    let python = stock("/usr/bin/python3", "python3");
    let script = "import mmap, subprocess; kept = [mmap.mmap(-1, 8192) for _ in range(20)]; \
                  subprocess.run(['/bin/true']); print(len(kept))";
    for flags in [
        &["--mmap"][..],
        &["--follow-fork"],
        &["--faults", "--follow-fork"],
    ] {
        let before = ["-q", "-f", "--output", path, "0.3"];
        let program = ["--", python.to_str().expect("UTF-8"), "-c", script];
        memleak(&[flags, &before[..], &program].concat());
        let reports = fs::read_to_string(&file).expect("reports");
        check("report.schema.json", &reports);
        let last = parsed(reports.lines().last().unwrap_or_default());
        let stacks = last["stacks"].as_array().expect("a list");
        assert!(!stacks.is_empty() && stacks.iter().any(|stack| !stack["ended"].is_null()));
        assert_eq!(
            stacks.iter().all(|stack| stack["kind"].is_string()),
            flags == ["--mmap"]
        );
    }
}

/// The kernel's own allocations.
#[test]
fn traced_kernel() {
    require_root();
    if lacks(Feature::Btf) {
        return;
    }
    let reports = memleak(&["-q", "--percpu", "--format", "json", "0.5", "1"]);
    check("report.schema.json", &reports);
    assert!(parsed(&reports)["kernel"]["release"].is_string());
}
