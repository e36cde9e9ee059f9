//! Stacks with frames left out: each format has a mark in their place.

use unwind_tables::walk::LeftOut;

use super::*;
use crate::samples;

/// The full report, with frames left out of its second stack after the first `after` of its three frames.
fn cut(after: u32) -> Report {
    let mut report = full();
    report.stacks[1].left_out = Some(LeftOut { after, frames: 3488 });
    report
}

/// The text has a line between the frames, before all or behind all of them. Frames without names on its two
/// sides are not counted together.
#[test]
fn text_with_frames_left_out() {
    let lines = |report: &Report| {
        let text = rendered(report, Format::Text);
        let (_, stack) = text.split_once(" libplugin.so+0x1234: ").unwrap();
        let lines = stack.lines().skip(1).take(5).map(str::trim);
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let left_out = "… 3488 frames left out …";
    for after in 0..=3 {
        let found = lines(&cut(after));
        assert_eq!(found[after as usize], left_out, "{found:#?}");
        assert!(found[4].starts_with("end: no_cfi"), "{found:#?}");
    }
    let mut nameless = cut(1);
    samples::change_frames(&mut nameless, 1, |frames| {
        let runtime = |function| {
            let frame = samples::frame("libstdc++.so.6", function);
            samples::renamed(frame, &Symbolized::default())
        };
        *frames = ["a", "b", "c"].map(runtime).to_vec();
    });
    let text = rendered(&nameless, Format::Text);
    let (_, after) = text.split_once("… 3488 frames left out …").expect(&text);
    assert!(
        after.trim_start().starts_with("(2 frames without names"),
        "{text}"
    );
}

/// JSON has the number of frames before those left out.
#[test]
fn json_with_frames_left_out() {
    let value: Value = serde_json::from_str(&rendered(&cut(2), Format::Json)).unwrap();
    assert_eq!(
        value["stacks"][1]["left_out"],
        json!({"after": 2, "frames": 3488})
    );
    assert_eq!(value["stacks"][0].get("left_out"), None);
}

/// Flame graphs have a frame in the place of those left out; the innermost frame is last.
#[test]
fn flame_graphs_with_frames_left_out() {
    let folded = rendered(&cut(1), Format::Folded);
    let line = folded.lines().next().unwrap();
    let whole = rendered(&full(), Format::Folded);
    let [end, outer, inner, innermost] = whole.lines().next().unwrap().split(';').collect::<Vec<_>>()[..]
    else {
        panic!("{whole}");
    };
    assert_eq!(
        line,
        format!("{end};{outer};{inner};[3488 frames left out];{innermost}")
    );
    for format in [Format::Speedscope, Format::Svg, Format::Gperftools] {
        let text = rendered(&cut(1), format);
        assert!(
            text.contains("[3488 frames left out]"),
            "{}: {text}",
            format.name()
        );
        assert!(!rendered(&full(), format).contains("left out"));
    }
}

/// Dialects have a line like a frame's.
#[test]
fn dialects_with_frames_left_out() {
    let has = |format, line: &str| {
        let text = rendered(&cut(1), format);
        assert!(text.contains(line), "{text}");
    };
    has(Format::Bcc, "\n\t\t[3488 frames left out]\n");
    has(
        Format::Libbpf,
        "\n\t1 [<0000000000000000>] [3488 frames left out]\n\t2 [<",
    );
}

/// Stacks with frames left out at different places, or with none left out, are different sites; stacks that
/// differ only in the number of these frames are one site.
#[test]
fn sites_with_frames_left_out() {
    let site = |report: &Report| report.stack(&report.stacks[1]).site();
    let [whole, one, two] = [full(), cut(1), cut(2)].map(|report| site(&report));
    assert!(whole != one && one != two && whole != two);
    let mut more = cut(1);
    more.stacks[1].left_out = Some(LeftOut { after: 1, frames: 1 });
    assert_eq!(site(&more), one);
}
