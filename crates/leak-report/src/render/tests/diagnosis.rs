//! Diagnoses in reports: above the stacks, in the words of `memleak why`.

use super::*;
use crate::model::diagnosis::{CauseKind, Certainty};
use crate::samples::{diagnosed, diagnosis};

/// Text has the whole diagnosis between its first line and the table of sites.
#[test]
fn text_of_a_diagnosis() {
    let text = rendered(&diagnosed(), Format::Text);
    let (above, _) = text.split_once("    ID SUSP").expect("a table");
    insta::assert_snapshot!(above, @r"
[09:05:07] leaker (4242), 12.3 s: 520 B outstanding in 13 blocks at 2 sites

server (4242), 29.5 MiB, looked at for 60 s: grows by 1.0 MiB/s

1. kept blocks: 95% of the growth, 998.9 KiB/s, 16.0 MiB by now (likely)
   by    remember app.cpp:54
   held  sessions (app.cpp:49)
   means no leak by the program's pointers
   next  give sessions (app.cpp:49) a bound

2. free memory in the allocator: 5.0 MiB, which do not grow
   means the allocator keeps their memory for later
   next  tell the allocator to give memory back

looked at: readings 18 s, blocks 42 s (0.4% of a CPU)
");
    let lines = DiagnosisText::from(&diagnosis()).lines();
    assert!(above.contains(&lines.join("\n")), "{above}");
    assert!(!rendered(&full(), Format::Text).contains("of the growth"));
}

/// On a narrow terminal no line of it is longer, and no word is lost.
#[test]
fn narrow_terminals() {
    let screen = Screen {
        width: Some(40),
        ..Screen::default()
    };
    let mut out = Vec::new();
    let report = diagnosed();
    People::new(screen).write(&report, true, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let (above, _) = text.split_once("    ID ").expect("a table");
    assert!(above.lines().all(|line| line.chars().count() <= 40), "{above}");
    let words = |text: &str| text.split_whitespace().collect::<String>();
    for line in DiagnosisText::from(&diagnosis()).lines() {
        assert!(words(above).contains(&words(&line)), "{line}: {above}");
    }
}

/// JSON has the numbers; the summary and the page have the words.
#[test]
fn other_formats() {
    let report = diagnosed();
    let json: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    let found = &json["diagnosis"];
    assert_eq!((&found["pid"], &found["grows"]), (&json!(4242), &json!(true)));
    assert_eq!(found["causes"][0]["site"]["line"], 54);
    let without: Value = serde_json::from_str(&rendered(&full(), Format::Json)).unwrap();
    assert_eq!(without.get("diagnosis"), None);
    let said = "server (4242), 29.5 MiB, looked at for 60 s: grows by 1.0 MiB/s";
    let summary = rendered(&report, Format::Summary);
    assert!(
        summary.contains(&format!(
            "  Diagnosis:      {said}\n  Cause:          kept blocks: "
        )),
        "{summary}"
    );
    let page = rendered(&report, Format::Html);
    assert!(page.contains(&format!(
        r#""diagnosis":{{"headline":"{said}","causes":[{{"title":"kept blocks: "#
    )));
    assert!(rendered(&full(), Format::Html).contains(r#""diagnosis":null"#));
}

/// Recordings and conditions call each kind and certainty what JSON calls it.
#[test]
fn names_in_recordings() {
    for kind in CauseKind::ALL {
        assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
    }
    assert_eq!(CauseKind::ALL.map(CauseKind::name), CauseKind::NAMES);
    for certainty in [Certainty::Possible, Certainty::Likely, Certainty::Certain] {
        assert_eq!(serde_json::to_value(certainty).unwrap(), certainty.name());
    }
}
