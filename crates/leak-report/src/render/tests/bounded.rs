//! JSON with a limit to the number of stacks.

use serde_json::{Value, json};

use super::*;

fn bounded(report: &Report, top: usize) -> Value {
    let mut out = Vec::new();
    render_top_json(report, top, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

/// JSON has at most the requested number of stacks, in the order of the text; the others are summed up, and
/// everything else is unchanged.
#[test]
fn first_stacks_and_others() {
    let report = full();
    let mut whole: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    let stacks = whole.as_object_mut().unwrap().remove("stacks").unwrap();
    let stacks = stacks.as_array().unwrap();
    let first = report.ranked()[0].site().to_string();
    for top in 0..5 {
        let mut bounded = bounded(&report, top);
        let members = bounded.as_object_mut().unwrap();
        let (shown, others) = (
            members.remove("stacks").unwrap(),
            members.remove("others").unwrap(),
        );
        assert_eq!(bounded, whole);
        let shown = shown.as_array().unwrap();
        assert_eq!(shown.len(), top.min(stacks.len()));
        assert!(shown.iter().all(|stack| stacks.contains(stack)));
        assert!(
            shown.first().is_none_or(|stack| stack["site"] == first),
            "{first}"
        );
        let sum = |stacks: &[Value], of: &str, unit: &str| -> u64 {
            stacks.iter().map(|stack| stack[of][unit].as_u64().unwrap()).sum()
        };
        assert_eq!(others["stacks"], stacks.len() - shown.len());
        for (of, unit) in [
            ("outstanding", "bytes"),
            ("outstanding", "blocks"),
            ("allocated", "bytes"),
        ] {
            let left = others[of][unit].as_u64().unwrap();
            assert_eq!(sum(shown, of, unit) + left, sum(stacks, of, unit), "{of} {unit}");
        }
    }
}

/// Sums of others are estimates in a sample, with their error.
#[test]
fn others_of_estimates() {
    let report = Report {
        sampling: Sampling::Bytes(4096),
        ..full()
    };
    let others = &bounded(&report, 1)["others"];
    assert!(others["outstanding"].get("standard_error").is_some(), "{others}");
    assert_eq!(
        bounded(
            &Report {
                stacks: Vec::new(),
                ..report
            },
            1
        )["stacks"],
        json!([])
    );
}
