//! Hostile names from a process and its files, in every format: none of them acts on the reader's terminal.

use super::*;
use crate::model::printable::is_format;
use crate::model::{Amount, Stack, Symbolized, TargetFacts};
use crate::samples;
use unwind_tables::walk::End;
use unwind_tables::walk::FoundBy;

/// A name of all characters that move a cursor, end a line, are invisible or change the direction of text, on
/// any terminal: the second set of control characters (C1) acts as escape sequences do.
fn name() -> String {
    let controls = (0..=u32::from('\u{9f}'))
        .filter_map(char::from_u32)
        .filter(|character| character.is_control());
    let others = "\u{ad}\u{200b}\u{200e}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}\u{e0041}";
    let sequences = "\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\r::error::text\n::warning::text";
    format!("n{}{others}{sequences}", controls.collect::<String>())
}

/// A report in which everything has the hostile name.
fn hostile() -> Report {
    let name = name();
    let evil = module(&format!("/opt/{name}"), None);
    let names = Symbolized {
        file: Some(format!("/src/{name}.c").into()),
        line: Some(1),
        inlined: vec![InlinedFrame {
            symbol: Some(name.as_str().into()),
            file: Some(format!("/src/{name}.h").into()),
            line: Some(2),
        }],
        ..named(&name, 0x10)
    };
    let python = Symbolized {
        file: Some(format!("/src/{name}.py").into()),
        line: Some(3),
        ..named(&format!("<{name}"), 0x10)
    };
    let frames = vec![
        frame(location(&evil, 0x10), FoundBy::Probe, names),
        frame(location(&evil, 0x20), FoundBy::Cfi, Symbolized::default()),
        // A function of Python, in a module, as only a recording can say.
        frame(location(&evil, 0x7dea_dbee_f000), FoundBy::Python, python),
    ];
    let outstanding = Amount { bytes: 40, blocks: 1 };
    let mut report = report(vec![Stack {
        allocator: samples::allocator(&name),
        ..stack(outstanding, End::NoCfi, Some(location(&evil, 0x30)), frames)
    }]);
    report.targets[0].comm.clone_from(&name);
    report.targets[0].exe = Some(format!("/opt/{name}"));
    let other = TargetFacts {
        instance: 2,
        ..report.targets[0].clone()
    };
    report.targets.push(other);
    report.ends = vec![EndGroup {
        module: Some(evil),
        end: End::NoCfi,
        stacks: 1,
        allocations: 1,
        addresses: vec![0x30],
    }];
    report.steps = vec![ModuleSteps {
        module: Some(evil),
        cfi: 1,
        fp: 1,
    }];
    report
}

/// No text format lets a control character through, and no name begins a line.
#[test]
fn control_characters_are_escaped() {
    let (hostile, plain) = (hostile(), full());
    for format in Format::all().filter(|format| *format != Format::Pprof) {
        let text = rendered(&hostile, format);
        let shown = |character: &char| !character.is_control() && !is_format(*character);
        let layout = |character: &char| matches!(character, '\n' | '\t');
        let acts = text
            .chars()
            .find(|character| !shown(character) && !layout(character));
        assert_eq!(acts, None, "{format:?}");
        for begun in ["::error", "::warning"] {
            assert!(
                !text.lines().any(|line| line.trim_start().starts_with(begun)),
                "{format:?}: {text}"
            );
        }
        assert!(rendered(&plain, format).len() > 100, "{format:?}");
    }
    let binary: Vec<_> = Format::all().filter(|format| format.is_binary()).collect();
    assert_eq!(binary, [Format::Pprof, Format::Heaptrack]);
    // Programs that parse the JSON get the original names.
    let json: Value = serde_json::from_str(&rendered(&hostile, Format::Json)).unwrap();
    assert_eq!(json["stacks"][0]["frames"][0]["symbol"], json!(name()));
    assert_eq!(json["targets"][0]["comm"], json!(name()));
    let python = &json["stacks"][0]["frames"][2];
    assert_eq!(python["symbol"], json!(format!("<{}", name())));
    for field in ["module", "address", "offset"] {
        assert_eq!(python[field], Value::Null, "a function of Python has no {field}");
    }
}
