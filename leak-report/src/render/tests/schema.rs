//! JSON of hand-made reports against `docs/report.schema.json`, by a validator that knows nothing of memleak. Real ones:
//! `tests/formats/json_schema.rs`.

use std::process::{Command, Stdio};

use super::*;

/// Reports with everything, of samples, and with nothing.
#[test]
fn made_reports_match_the_schema() {
    let mut everything = full();
    // Of the causes of losses, the schema has those that there are.
    everything.losses.causes = [("block_table_full".into(), 9)].into();
    let sampled = Report {
        sampling: Sampling::Bytes(4096),
        ..everything.clone()
    };
    let nothing = Report {
        stacks: Vec::new(),
        ..everything.clone()
    };
    let mut python = Command::new("/usr/bin/python3")
        .args(["tests/validate_json.py", "report.schema.json"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("apt-get install python3 python3-jsonschema");
    let mut input = python.stdin.take().unwrap();
    for report in [everything, sampled, nothing] {
        render(&report, Format::Json, &mut input).unwrap();
    }
    drop(input);
    let output = python.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("3 checked, 0 violations"),
        "{said}"
    );
}
