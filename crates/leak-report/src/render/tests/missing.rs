use super::*;
use crate::model::{Missing, TracePart};

/// Every format for people mentions a missing part of a trace, and JSON lists it; without missing parts there
/// is no such line.
#[test]
fn what_a_trace_went_without() {
    let report = Report {
        missing: vec![Missing {
            part: TracePart::Python,
            program: "python_code_end".to_owned(),
            reason: "infinite loop detected at insn 5 (verifier, EINVAL)".to_owned(),
        }],
        ..full()
    };
    let said = "functions of Python are not in stacks: the kernel refused the program python_code_end: infinite loop detected at insn 5";
    for (text, label) in [
        (rendered(&report, Format::Text), "  missing: "),
        (verbose(&report), "  Missing:   "),
        (rendered(&report, Format::Summary), "  Missing:        "),
        (rendered(&report, Format::Html), "\"missing\":[\""),
    ] {
        assert!(text.contains(&format!("{label}{said}")), "{label}: {text}");
    }
    for format in [Format::Text, Format::Summary] {
        assert!(!rendered(&full(), format).to_lowercase().contains("missing"));
    }
    let json: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    assert_eq!(json["missing"][0]["part"], "python");
    let without: Value = serde_json::from_str(&rendered(&full(), Format::Json)).unwrap();
    assert_eq!(without.get("missing"), None);
}

/// Each part has a name of its own, and a text on what a trace lacks without it.
#[test]
fn parts() {
    let names: std::collections::BTreeSet<_> = TracePart::ALL.map(TracePart::name).into();
    assert_eq!(names.len(), TracePart::ALL.len());
    for part in TracePart::ALL {
        let name = serde_json::to_value(part).unwrap();
        assert_eq!(name, part.name(), "recordings and JSON call it the same");
        assert!(!part.without().ends_with('.'));
    }
}
