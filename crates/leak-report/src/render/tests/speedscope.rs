//! Golden outputs of speedscope files.

use super::*;
use crate::model::{Amount, Measure, Quantity, Unit};

fn parsed(report: &Report) -> Value {
    serde_json::from_str(&rendered(report, Format::Speedscope)).unwrap()
}

/// The file is as expected; stacks without an amount of a quantity are not in its profile.
#[test]
fn speedscope_of_a_full_report() {
    let profile = |name: &str, unit: &str, weights: [u64; 2]| {
        json!({
            "type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": weights[0] + weights[1],
            "samples": [[0, 1, 2], [3, 4, 5, 6]], "weights": weights,
        })
    };
    let expected = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "Outstanding bytes: leaker (4242), 12.3 s, complete stacks: 93.3% of allocations",
        "exporter": format!("memleak@{}", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": {"frames": [
            {"name": "main", "file": "/src/leaker.cpp"},
            {"name": "LeakLib::slowMemoryLeak()", "file": "/src/leaklib.h"},
            {"name": "operator new(unsigned long)"},
            {"name": "[no_cfi in libplugin.so]"},
            {"name": "evil\\u{1b}[2J"},
            {"name": "[unknown]"},
            {"name": "[libplugin.so]"},
        ]},
        "profiles": [
            profile("Outstanding bytes", "bytes", [480, 40]),
            profile("Outstanding blocks", "none", [12, 1]),
            profile("Allocated bytes", "bytes", [960, 80]),
        ],
    });
    assert_eq!(parsed(&full()), expected);
}

/// The requested quantity is shown first, and added if it is not included anyway.
#[test]
fn speedscope_uses_the_requested_quantity() {
    let shown = |measure, unit| {
        let mut report = full();
        report.quantity = Quantity { measure, unit };
        report.stacks[0].recent.since_last.allocated = Amount { bytes: 77, blocks: 3 }.into();
        let file = parsed(&report);
        let active = usize::try_from(file["activeProfileIndex"].as_u64().unwrap()).unwrap();
        let profile = &file["profiles"][active];
        (
            file["profiles"].as_array().unwrap().len(),
            profile["name"].clone(),
            profile["weights"].clone(),
        )
    };
    for (measure, unit, expected) in [
        (
            Measure::Outstanding,
            Unit::Bytes,
            (3, json!("Outstanding bytes"), json!([480, 40])),
        ),
        (
            Measure::Outstanding,
            Unit::Blocks,
            (3, json!("Outstanding blocks"), json!([12, 1])),
        ),
        (
            Measure::Allocated,
            Unit::Blocks,
            (4, json!("Allocated blocks"), json!([24, 2])),
        ),
        (
            Measure::Growth,
            Unit::Bytes,
            (4, json!("Growth in bytes since the last report"), json!([77])),
        ),
    ] {
        assert_eq!(shown(measure, unit), expected);
    }
}

/// A report without stacks gives a file without samples.
#[test]
fn speedscope_of_an_empty_report() {
    let file = parsed(&report(Vec::new()));
    assert_eq!(file["shared"]["frames"], json!([]));
    for profile in file["profiles"].as_array().unwrap() {
        assert_eq!([&profile["samples"], &profile["weights"]], [&json!([]); 2]);
        assert_eq!(profile["endValue"], 0);
    }
}
