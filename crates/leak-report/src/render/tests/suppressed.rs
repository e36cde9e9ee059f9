//! Suppressed stacks in each format.

use super::*;
use crate::model::Suppression;

/// Suppressed stacks are not among those shown, and their amount is given by rule; JSON contains them,
/// marked.
#[test]
fn suppressed_stacks_are_left_out() {
    let mut report = full();
    let by = Suppression {
        rule: "leak:slow".to_owned(),
        place: "known.txt:3".to_owned(),
    };
    report.stacks[0].suppressed_by = Some(Arc::new(by));
    report.stacks[2].suppressed_by = report.stacks[0].suppressed_by.clone();
    let text = rendered(&report, Format::Text);
    assert!(
        !text.contains("slowMemoryLeak") && text.contains("40 B outstanding in 1 block at 1 site"),
        "{text}"
    );
    let line = "\n  suppressed: 480 B in 12 blocks from 1 stack by leak:slow (known.txt:3)\n";
    assert!(text.contains(line), "{text}");
    let value: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    let marks = value["stacks"].as_array().unwrap().iter();
    let marks: Vec<_> = marks.map(|stack| &stack["suppressed_by"]).collect();
    assert_eq!(marks, [&json!("leak:slow"), &Value::Null, &json!("leak:slow")]);
}
