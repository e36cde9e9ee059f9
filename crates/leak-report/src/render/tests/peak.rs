//! The peak in formats for people and for programs.

use super::*;
use crate::model::{Amount, Measure, Order, Quantity, Unit};
use crate::samples::peaked;
use std::time::Duration;

/// The line of the closing block that begins with `peak`.
fn line(report: &Report) -> Option<String> {
    let text = rendered(report, Format::Text);
    let line = text.lines().find(|line| line.trim_start().starts_with("peak: "));
    line.map(|line| line.trim_start().to_owned())
}

/// The line has the amount at the peak, its time, and how far the true peak can be above it. It is only there
/// if the peak notably exceeds the outstanding amount, or if the order is that of the peak.
#[test]
fn text_of_a_peak() {
    let mut report = peaked();
    let expected = "peak: 1000 B in 13 blocks, 7.5 s after the attach (true peak at most 2% higher)";
    assert_eq!(line(&report).as_deref(), Some(expected));
    let peak = report.peak.as_mut().unwrap();
    (peak.never_above, peak.elapsed) = (4096, Duration::from_secs(7325));
    let expected =
        "peak: 1000 B in 13 blocks, 2 h 2 min after the attach (true peak between two looks at most 4.0 KiB)";
    assert_eq!(line(&report).as_deref(), Some(expected));
    report.peak.as_mut().unwrap().total = Amount {
        bytes: 540,
        blocks: 13,
    };
    assert_eq!(line(&report), None, "520 B are outstanding");
    report.sort(Some(Order::Peak));
    assert!(line(&report).is_some());
    report.peak = None;
    assert_eq!(line(&report), None);
    assert_eq!(line(&full()), None);
}

/// In the order of the peak, stacks without outstanding blocks are listed, with their amounts at the peak. In
/// other orders, only amounts at the peak that differ from the outstanding ones are shown.
#[test]
fn table_of_a_peak() {
    let mut report = peaked();
    let text = rendered(&report, Format::Text);
    assert!(
        !text.contains("AT PEAK") && !text.contains("at the peak: 480 B"),
        "{text}"
    );
    assert!(text.contains("\n   at the peak: 0 B in 0 blocks\n"), "{text}");
    report.sort(Some(Order::Peak));
    let text = rendered(&report, Format::Text);
    let rows = text
        .lines()
        .skip_while(|line| !line.contains("AT PEAK"))
        .skip(1)
        .take(3);
    let held: Vec<_> = rows
        .map(|row| {
            row.split_whitespace()
                .skip(2)
                .take(4)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(held, ["520 B 0 B", "480 B 480 B", "0 B 40 B"], "{text}");
    assert!(text.contains("at the peak: 520 B in 1 block\n"), "{text}");
}

/// In JSON, each stack and the report have their amounts at the peak; without a peak they have none.
#[test]
fn json_of_a_peak() {
    let json = |report: &Report| -> Value { serde_json::from_str(&rendered(report, Format::Json)).unwrap() };
    let found = json(&peaked());
    assert_eq!(
        found["peak"],
        serde_json::json!({
            "elapsed_ns": 7_500_000_000_u64, "bytes": 1000, "blocks": 13, "never_above_bytes": 1011, "looks": 1234
        })
    );
    assert_eq!(
        found["stacks"][1]["peak"],
        serde_json::json!({"bytes": 0, "blocks": 0})
    );
    assert_eq!(
        found["stacks"][2]["peak"],
        serde_json::json!({"bytes": 520, "blocks": 1})
    );
    let without = json(&full());
    assert!(without.get("peak").is_none() && without["stacks"][0].get("peak").is_none());
}

/// Flame graphs can show amounts at the peak.
#[test]
fn folded_of_a_peak() {
    let mut report = peaked();
    for (unit, expected) in [(Unit::Bytes, 1000), (Unit::Blocks, 13)] {
        report.quantity = Quantity {
            measure: Measure::Peak,
            unit,
        };
        let folded = rendered(&report, Format::Folded);
        let numbers = folded
            .lines()
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        assert_eq!(numbers.sum::<u64>(), expected, "{folded}");
    }
}
