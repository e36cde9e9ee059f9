//! Answers about hand-made reports, and requests of any kind.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use leak_report::model::{Amount, Report, Symbol, Symbolized};
use leak_report::render::{Format, ReportSink, render};
use leak_report::samples;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::sinks::recording::{Recorder, Settings};

const INITIALIZE: &str =
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#;

/// Answers to lines.
fn answers(reports: &mut dyn Reports, lines: &[u8]) -> Vec<Value> {
    let mut output = Vec::new();
    serve(reports, &mut BufReader::new(lines), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The result of a tool, parsed, or its error.
fn call(reports: &mut dyn Reports, tool: &str, arguments: Value) -> Result<Value, String> {
    let request = json!({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let answers = answers(reports, format!("{INITIALIZE}\n{request}\n").as_bytes());
    let result = &answers[1]["result"];
    assert_eq!(
        (&answers[1]["id"], answers.len()),
        (&json!("a"), 2),
        "{answers:?}"
    );
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.len() <= tools::MAX_ANSWER, "{} bytes", text.len());
    match result["isError"].as_bool().unwrap() {
        true => Err(text.to_owned()),
        false => Ok(serde_json::from_str(text).unwrap()),
    }
}

/// Two reports: in the second, the first stack has ten more blocks of 100 bytes outstanding.
fn two() -> [Report; 2] {
    let before = samples::full();
    let mut after = before.clone();
    let held = &mut after.stacks[0].outstanding;
    held.amount = held.amount
        + Amount {
            bytes: 1000,
            blocks: 10,
        };
    [before, after]
}

fn kept(reports: &[Report]) -> Kept {
    let mut kept = Kept::default();
    for report in reports {
        kept.report(&Arc::new(report.clone())).unwrap();
    }
    kept
}

fn written(directory: &Path, reports: &[Report]) -> [std::ffi::OsString; 2] {
    let recording = directory.join("leaks.memleak");
    let mut recorder = Recorder::create(&Settings {
        file: recording.clone(),
        overwrite: true,
        limit: Settings::DEFAULT_LIMIT,
        anonymize: false,
    })
    .unwrap();
    let json = directory.join("leaks.json");
    let mut lines = b"{\"event\":\"free\"}\n".to_vec();
    for (number, report) in (1..).zip(reports) {
        recorder.record(number, report).unwrap();
        render(report, Format::Json, &mut lines).unwrap();
    }
    recorder.finish().unwrap();
    fs::write(&json, lines).unwrap();
    [recording.into(), json.into()]
}

/// Recordings, JSON and the reports of a trace give the same answers; reports are numbered across all files.
#[test]
fn sources_agree() {
    let directory = tempfile::tempdir().unwrap();
    let [recording, json] = written(directory.path(), &two());
    let mut files = [
        Files::open(std::slice::from_ref(&recording)).unwrap(),
        Files::open(std::slice::from_ref(&json)).unwrap(),
    ];
    let mut kept = kept(&two());
    for (tool, arguments) in [
        ("summary", json!({})),
        ("summary", json!({"report": 1, "top": 1})),
        ("stacks", json!({"report": -2})),
        ("diff", json!({"before": 1, "after": -1})),
    ] {
        let expected = call(&mut kept, tool, arguments.clone()).unwrap();
        for files in &mut files {
            assert_eq!(call(files, tool, arguments.clone()).unwrap(), expected, "{tool}");
        }
    }
    let mut both = Files::open(&[recording, json]).unwrap();
    let list = call(&mut both, "reports", json!({})).unwrap();
    assert_eq!(list["count"], 4);
    let named: Vec<_> = list["latest_first"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["file"])
        .collect();
    assert_eq!(
        named,
        ["leaks.json", "leaks.json", "leaks.memleak", "leaks.memleak"]
    );
    assert_eq!(
        call(&mut both, "diff", json!({"before": 2, "after": 4})).unwrap()["changed_sites"],
        0
    );
    let error = Files::open(&[directory.path().join("none").into()])
        .err()
        .unwrap();
    assert!(format!("{error:#}").contains("none"), "{error:#}");
}

/// A summary has the sums of the report and its largest sites, and a site's stacks have its frames.
#[test]
fn answers_about_a_report() {
    let mut kept = kept(&two());
    let summary = call(&mut kept, "summary", json!({})).unwrap();
    assert_eq!(summary["report"], 2);
    assert_eq!(summary["processes"][0]["name"], "leaker");
    assert_eq!(summary["complete_stacks"], json!({"allocations": 28, "of": 30}));
    let first = &summary["sites"][0];
    assert_eq!((&first["bytes"], &first["blocks"]), (&json!(1480), &json!(22)));
    assert_eq!(first["function"], "LeakLib::slowMemoryLeak()");
    assert_eq!(first["at"], "/src/leaklib.h:12");
    let site = first["site"].clone();
    let stacks = call(&mut kept, "stacks", json!({"site": site})).unwrap();
    let of_site = stacks["stacks"].as_array().unwrap();
    assert!(of_site.iter().all(|stack| stack["site"] == site), "{stacks}");
    assert_eq!(
        (&of_site[0]["bytes"], &of_site[0]["end"]),
        (&json!(1480), &json!("complete"))
    );
    assert_eq!(
        of_site[0]["frames"],
        json!([
            "operator new(unsigned long) [libstdc++.so.6.0.30]",
            "LeakLib::slowMemoryLeak() (inlined) /src/leaklib.h:12",
            "main [leaker] /src/leaker.cpp:30",
        ])
    );
    let grown = call(&mut kept, "diff", json!({"before": 1})).unwrap();
    assert_eq!(grown["grown_by"], json!({"bytes": 1000, "blocks": 10}));
    assert_eq!(grown["sites"].as_array().unwrap().len(), 1);
    assert_eq!(
        (
            &grown["sites"][0]["site"],
            &grown["sites"][0]["grown_by"]["bytes"]
        ),
        (&site, &json!(1000))
    );
    let shrunk = call(&mut kept, "diff", json!({"before": 2, "after": 1})).unwrap();
    assert_eq!(shrunk["sites"][0]["grown_by"]["blocks"], -10);
    let judged = call(&mut self::kept(&[samples::judged()]), "summary", json!({})).unwrap();
    assert_eq!(judged["verdict"]["definitely_lost"]["blocks"], 8);
    assert_eq!(judged["sites"][0]["definitely_lost"]["blocks"], 8);
}

/// A mistake in a call is reported in the tool's result.
#[test]
fn refused_calls() {
    let mut kept = kept(&two());
    for (tool, arguments, part) in [
        (
            "summary",
            json!({"report": 3}),
            "no report 3: there are 2, from 1 to 2",
        ),
        ("summary", json!({"report": 0}), "no report 0"),
        ("summary", json!({"report": -3}), "no report -3"),
        ("summary", json!({"report": "last"}), "not a whole number"),
        ("summary", json!({"report": i64::MIN}), "no report"),
        ("summary", json!({"of": 1}), "no parameter `of`"),
        ("stacks", json!({"site": "0"}), "has no site `0`"),
        ("stacks", json!({"top": -1}), "`top`"),
        ("diff", json!({}), "`before` is missing"),
    ] {
        let error = call(&mut kept, tool, arguments).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
    let early = call(&mut Kept::default(), "summary", json!({})).expect_err("no report");
    assert!(early.contains("no report yet"), "{early}");
    let over = Kept::default();
    over.end();
    assert_eq!(
        call(&mut over.clone(), "reports", json!({})).unwrap()["state"],
        "the trace is over"
    );
}

/// The first report of a trace and the last ones are kept.
#[test]
fn kept_reports_are_bounded() {
    let mut kept = kept(&vec![samples::full(); 40]);
    let list = call(&mut kept, "reports", json!({})).unwrap();
    let numbers: Vec<_> = list["latest_first"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["report"].as_u64().unwrap())
        .collect();
    let expected: Vec<_> = (26..=40).rev().chain([1]).collect();
    assert_eq!(numbers, expected);
}

/// Answers are bounded, however many sites there are and however long their names; the rest is summed up.
#[test]
fn answers_are_bounded() {
    let mut report = samples::full();
    let stack = report.stacks[0].clone();
    report.stacks = (0..300_u64)
        .map(|number| {
            let name = format!("f{number}{}\u{202e}", "\u{7f}\"x".repeat(400));
            let names = Symbolized {
                symbol: Some(Symbol {
                    name: name.as_str().into(),
                    offset: None,
                }),
                ..Symbolized::default()
            };
            let frame = samples::changed(samples::frames(&stack)[1], |frame| {
                let place = frame.at.place.as_mut().unwrap();
                place.svma = place.svma.wrapping_add(number);
            });
            let frame = samples::renamed(frame, &names);
            samples::with_frames(stack.clone(), vec![frame; 120])
        })
        .collect();
    samples::renew(&mut report);
    let mut kept = kept(&[report]);
    let summary = call(&mut kept, "summary", json!({"top": 1000})).unwrap();
    let shown = summary["sites"].as_array().unwrap();
    assert!((1..=50).contains(&shown.len()), "{}", shown.len());
    assert_eq!(
        shown.len() as u64 + summary["others"]["entries"].as_u64().unwrap(),
        300
    );
    let bytes: u64 = shown.iter().map(|site| site["bytes"].as_u64().unwrap()).sum();
    let all = summary["outstanding_without_young"]["bytes"].as_u64().unwrap();
    assert_eq!(bytes + summary["others"]["bytes"].as_u64().unwrap(), all);
    let stacks = call(&mut kept, "stacks", json!({"top": 50})).unwrap();
    assert!(
        stacks["stacks"][0]["frames_left_out"].as_u64().unwrap() > 0,
        "{stacks}"
    );
    assert!(stacks["others"]["entries"].as_u64().unwrap() > 200);
}

/// The server chooses the client's revision if it knows it, else its newest; without `initialize`, a request
/// must name a revision that needs none.
#[test]
fn revisions() {
    let mut kept = kept(&two());
    let initialize = |revision: &str| INITIALIZE.replace("2025-11-25", revision);
    for (wanted, chosen) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-11-25"),
        ("9999-01-01", "2025-11-25"),
    ] {
        let answer = &answers(&mut kept, initialize(wanted).as_bytes())[0];
        assert_eq!(answer["result"]["protocolVersion"], chosen, "{answer}");
        assert_eq!(answer["result"]["serverInfo"]["name"], "memleak");
    }
    let stateless = |method: &str, revision: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": revision});
        let params = json!({"_meta": meta, "name": "summary"});
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
    };
    let answer = |kept: &mut Kept, line: String| answers(kept, line.as_bytes())[0].clone();
    let found = answer(&mut kept, stateless("server/discover", "2026-07-28"));
    assert_eq!(found["result"]["supportedVersions"], json!(["2026-07-28"]));
    let called = answer(&mut kept, stateless("tools/call", "2026-07-28"));
    assert_eq!(
        (&called["result"]["isError"], &called["result"]["resultType"]),
        (&json!(false), &json!("complete"))
    );
    let refused = answer(&mut kept, stateless("tools/call", "2027-01-01"));
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(
        refused["error"]["data"],
        json!({"supported": ["2026-07-28"], "requested": "2027-01-01"})
    );
}

/// Each request gets one answer with its id, or the error that JSON-RPC has for it; notifications and answers
/// get none.
#[test]
fn requests() {
    let mut kept = kept(&two());
    for (line, code) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, None),
        (
            r#"{"jsonrpc":"2.0","id":"x","method":"tools/list","params":{}}"#,
            None,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/nothing"}"#,
            Some(-32601),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"rm"}}"#,
            Some(-32602),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"diff","arguments":7}}"#,
            Some(-32602),
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#,
            Some(-32602),
        ),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, Some(-32600)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, Some(-32600)),
        (r#"{"jsonrpc":"2.0","id":1}"#, Some(-32600)),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Some(-32600)),
        ("7", Some(-32600)),
        ("{", Some(-32700)),
        ("\u{1b}[2J", Some(-32700)),
    ] {
        let answers = answers(&mut kept, format!("{INITIALIZE}\n\n{line}\n").as_bytes());
        assert_eq!(answers.len(), 2, "{line}");
        assert_eq!(
            answers[1]["error"]["code"].as_i64(),
            code,
            "{line}: {}",
            answers[1]
        );
        assert_eq!(answers[1].get("result").is_some(), code.is_none());
    }
    for silent in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        assert_eq!(
            answers(&mut kept, silent.as_bytes()),
            Vec::<Value>::new(),
            "{silent}"
        );
    }
    let early = answers(&mut kept, br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    assert_eq!(early[0]["error"]["code"], -32600);
    let long = [
        vec![b' '; lines::MAX_BYTES + 1],
        b"\n".to_vec(),
        INITIALIZE.into(),
    ]
    .concat();
    let answers = answers(&mut kept, &long);
    assert_eq!(
        (&answers[0]["error"]["code"], &answers[1]["id"]),
        (&json!(-32600), &json!(0))
    );
}

proptest! {
    /// Whatever a client sends, each line of the output is an answer, and the server goes on.
    #[test]
    fn any_line(line in "[^\n]{0,200}", value in any_json()) {
        let mut kept = kept(&[]);
        let lines = format!("{line}\n{value}\n{INITIALIZE}\n{value}\n");
        for answer in answers(&mut kept, lines.as_bytes()) {
            assert_eq!(&answer["jsonrpc"], "2.0");
            assert!(answer.get("result").is_some() != answer.get("error").is_some(), "{answer}");
        }
    }

    /// Whatever is in a JSON file, there is an answer of limited length.
    #[test]
    fn any_file(line in any_json()) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let begin = r#"{"schema_version":1,"memleak":"#;
        fs::write(&path, format!("{begin}{line}}}\n{begin}")).unwrap();
        let mut files = Files::open(&[path.into()]).unwrap();
        assert_eq!(files.numbers(), [1, 2]);
        for number in [1, 2] {
            let refused = call(&mut files, "summary", json!({"report": number})).expect_err("no report");
            assert!(refused.contains("not a report of memleak"), "{refused}");
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("method".to_owned()),
        Just("id".to_owned()),
        Just("params".to_owned()),
        Just("jsonrpc".to_owned()),
        Just("name".to_owned()),
        Just("tools/call".to_owned()),
        Just("2.0".to_owned()),
        Just("summary".to_owned()),
        Just("arguments".to_owned()),
        Just("_meta".to_owned()),
        any::<String>(),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(word.clone(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}
