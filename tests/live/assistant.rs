//! Questions of an assistant, asked by the Model Context Protocol's own client (mcp of PyPI): about a trace
//! while it goes on, and about files. Answers are what the traced program counted and what memleak reports
//! elsewhere.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};

/// Directory where `tests/setup.sh` installs packages from PyPI.
const PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/python");
const MEMLEAK: &str = env!("CARGO_BIN_EXE_memleak");

/// The client, with a server that it started.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// Starts `memleak mcp` with these arguments. Also returns what the client knows of the server.
    #[track_caller]
    fn start(mode: &str, arguments: &[&str]) -> (Self, Value) {
        let mut child = Command::new("/usr/bin/python3")
            .args(["tests/mcp_client.py", mode, MEMLEAK, "mcp"])
            .args(arguments)
            .env("PYTHONPATH", PACKAGES)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("apt-get install python3");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut client = Self {
            child,
            input,
            output: BufReader::new(output.expect("a pipe")),
        };
        let server = client.line();
        (client, server)
    }

    #[track_caller]
    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("UTF-8");
        assert!(!line.is_empty(), "the client has ended: tests/setup.sh test");
        serde_json::from_str(&line).expect("JSON")
    }

    #[track_caller]
    fn ask(&mut self, tool: &str, arguments: &Value) -> Value {
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{}", json!([tool, arguments])).expect("it reads");
        self.line()
    }

    /// Calls a tool and returns its answer.
    #[track_caller]
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask(tool, &arguments);
        assert_eq!(answer["is_error"], false, "{answer}");
        serde_json::from_str(answer["text"].as_str().expect("text")).expect("JSON")
    }

    /// Number of the last report.
    #[track_caller]
    fn last(&mut self) -> u64 {
        let list = self.call("reports", json!({}));
        list["latest_first"][0]["report"].as_u64().unwrap_or(0)
    }

    /// Waits until two more reports are made, the second of which began after this call.
    #[track_caller]
    fn await_reports(&mut self) {
        let last = self.last();
        for _ in 0..600 {
            if self.last() >= last + 2 {
                return;
            }
            sleep(Duration::from_millis(50));
        }
        panic!("no reports after {last}");
    }

    /// Ends the input, with which server and client end.
    #[track_caller]
    fn finish(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("a child").success());
    }
}

fn program(test: &str) -> PathBuf {
    let directory = directory(&format!("assistant-{test}"));
    compile(
        &directory,
        "amounts/snapshots.c",
        &["-O2", "-fno-optimize-sibling-calls", "-pthread"],
    )
}

#[track_caller]
fn site_of<'a>(answer: &'a Value, function: &str) -> &'a Value {
    let sites = answer["sites"].as_array().expect("sites");
    let found = sites.iter().find(|site| site["function"] == function);
    found.unwrap_or_else(|| panic!("no {function}: {answer}"))
}

/// A running process's last report, its history and its stacks can be asked for; also after its end.
#[test]
fn a_trace_answers() {
    let mut program = Program::start(&program("trace"), &["5000", "2"]);
    program.expect("ready");
    let pid = program.pid().to_string();
    let (mut client, server) = Client::start("auto", &["--every", "300ms", &pid]);
    assert_eq!(server["server"], "memleak");
    assert_eq!(server["revision"], "2026-07-28");
    assert_eq!(server["tools"], json!(["reports", "summary", "stacks", "diff"]));
    assert_eq!(server["read_only"], true);
    client.await_reports();
    program.step("kept");
    // Blocks are young for half a second.
    sleep(Duration::from_secs(1));
    client.await_reports();
    let summary = client.call("summary", json!({}));
    assert_eq!(summary["processes"][0]["pid"], program.pid());
    assert_eq!(summary["lost"], json!({"bytes": 0, "blocks": 0}));
    let kept = site_of(&summary, "keep_block");
    assert_eq!(
        (&kept["bytes"], &kept["blocks"]),
        (&json!(24 * 5000), &json!(5000))
    );
    let grown = client.call("diff", json!({"before": 1}));
    let grown = site_of(&grown, "keep_block");
    assert_eq!(grown["grown_by"], json!({"bytes": 24 * 5000, "blocks": 5000}));
    let stacks = client.call("stacks", json!({"site": kept["site"]}));
    let frames = stacks["stacks"][0]["frames"].as_array().expect("frames");
    assert!(
        frames[0]
            .as_str()
            .expect("text")
            .starts_with("keep_block [snapshots]"),
        "{frames:?}"
    );
    let refused = client.ask("stacks", &json!({"site": "none"}));
    assert_eq!(refused["is_error"], true, "{refused}");
    assert_eq!(client.ask("remove", &json!({})), json!({"failure": -32602}));
    program.step("churning");
    program.step("quiet");
    drop(program);
    for _ in 0..600 {
        if client.call("reports", json!({}))["state"] == "the trace is over" {
            break;
        }
        sleep(Duration::from_millis(50));
    }
    let ended = client.call("summary", json!({}));
    assert_eq!(ended["processes"][0]["ended"], "exited", "{ended}");
    client.finish();
}

/// A recording and JSON of the same trace give the same answers, which agree with the report itself.
#[test]
fn files_answer() {
    let directory = directory("assistant-files");
    let path = |name: &str| -> String {
        let path: &Path = &directory.join(name);
        path.to_str().expect("UTF-8").to_owned()
    };
    let recording = path("leaks.memleak");
    let mut program = Program::start(&program("recorded"), &["700", "0"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--record", &recording, "-o", "0", "-f"]);
    program.step("kept");
    let report = memleak.finish();
    let text = path("leaks.json");
    let written = Command::new(MEMLEAK)
        .args(["report", &recording, "--format", "json", "-f", "--output", &text])
        .status();
    assert!(written.expect("memleak runs").success());
    let mut answers = Vec::new();
    for file in [&recording, &text] {
        let (mut client, server) = Client::start("legacy", &[file]);
        assert_eq!(server["revision"], "2025-11-25");
        let summary = client.call("summary", json!({"report": -1}));
        assert_eq!(summary["outstanding"]["bytes"], report.outstanding.bytes);
        assert_eq!(summary["allocated"]["blocks"], report.allocated.blocks);
        assert_eq!(site_of(&summary, "keep_block")["blocks"], 700);
        let stacks = client.call("stacks", json!({"top": 3}));
        answers.push((summary["sites"].clone(), stacks["stacks"].clone()));
        client.finish();
    }
    assert_eq!(answers[0], answers[1]);
}
