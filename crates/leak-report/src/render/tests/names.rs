//! Names of functions: abbreviated for people unless they request full ones, and exact for programs.

use super::*;
use crate::model::{Amount, NameStyle, Symbolized};
use crate::samples;
use crate::samples::{inlined, report, stack};

const PUSH: &str = "std::vector<int, std::allocator<int> >::push_back(int&&)";
const PUSH_SHORT: &str = "std::vector<int>::push_back(int&&)";
const NEW: &str =
    "std::__new_allocator<std::pair<int, std::vector<int, std::allocator<int> > > >::allocate(unsigned long)";
const NEW_SHORT: &str = "std::__new_allocator<std::pair<int, std::vector<int>>>::allocate(unsigned long)";

fn of_style(names: NameStyle) -> Report {
    let mut stack = stack(vec![
        inlined("libx.so", PUSH, &[NEW]),
        samples::frame("libx.so", "main"),
    ]);
    stack.outstanding = Amount {
        bytes: 480,
        blocks: 12,
    }
    .into();
    stack.allocated = stack.outstanding;
    Report {
        names,
        ..report(vec![stack])
    }
}

/// Returns two flags: the format contains the exact names; it contains abbreviated ones.
fn has(names: NameStyle, format: Format) -> (bool, bool) {
    let mut out = Vec::new();
    render(&of_style(names), format, &mut out).unwrap();
    if out.starts_with(&[0x1f, 0x8b]) {
        let mut text = Vec::new();
        std::io::copy(&mut flate2::read::GzDecoder::new(&out[..]), &mut text).unwrap();
        out = text;
    }
    let text = String::from_utf8_lossy(&out).replace("\\u003c", "<");
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    let both = |push: &str, new: &str| {
        assert_eq!(text.contains(push), text.contains(new), "{format:?}: {text}");
        text.contains(push)
    };
    (both(PUSH, NEW), both(PUSH_SHORT, NEW_SHORT))
}

/// Graphs have abbreviated names, or full ones on request; formats for other programs always have full ones.
#[test]
fn styles() {
    let (exact, short, both) = ((true, false), (false, true), (true, true));
    for (format, usually, verbatim) in [
        (Format::Folded, short, exact),
        (Format::Svg, short, exact),
        (Format::Speedscope, short, exact),
        (Format::Html, both, exact),
        (Format::Json, both, both),
        (Format::Pprof, exact, exact),
        (Format::Gperftools, exact, exact),
    ] {
        assert_eq!(has(NameStyle::Abbreviated, format), usually, "{format:?}");
        assert_eq!(has(NameStyle::Verbatim, format), verbatim, "{format:?}");
    }
}

/// JSON has the exact name in `symbol`, and the abbreviated one beside it only if it differs.
#[test]
fn json_has_exact_and_abbreviated_names() {
    let value: Value =
        serde_json::from_str(&rendered(&of_style(NameStyle::Abbreviated), Format::Json)).unwrap();
    let frames = &value["stacks"][0]["frames"];
    assert_eq!(
        [&frames[0]["symbol"], &frames[0]["symbol_short"]],
        [PUSH, PUSH_SHORT]
    );
    let inlined = &frames[0]["inlined"][0];
    assert_eq!([&inlined["symbol"], &inlined["symbol_short"]], [NEW, NEW_SHORT]);
    assert_eq!(frames[1]["symbol"], "main");
    assert!(frames[1].get("symbol_short").is_none());
}

/// A frame that may belong to another function with the same code has a mark in formats for people; JSON has
/// the names of the other functions, and formats for other programs are unchanged.
#[test]
fn folded_functions() {
    let bytes = |report: &Report, format| {
        let mut out = Vec::new();
        render(report, format, &mut out).unwrap();
        out
    };
    let report = of_style(NameStyle::Abbreviated);
    let folded = |names: &[&str]| {
        let mut report = report.clone();
        let mut frames = crate::samples::frames(&report.stacks[0]);
        let symbolized = Symbolized {
            folded: names.iter().map(|&name| name.into()).collect(),
            ..crate::samples::full::named("make<User>(int)", 4)
        };
        frames[1] = crate::samples::renamed(frames[1], &symbolized);
        report.stacks[0] = samples::with_frames(report.stacks[0].clone(), frames);
        samples::renew(&mut report);
        report
    };
    let many: Vec<_> = (0..64).map(|number| format!("make<{number}>(int)")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for (names, mark) in [
        (&[][..], ""),
        (&["make<Order>(int)"], " (or 1 other)"),
        (&["make<A>(int)", "make<B>(int)"], " (or 2 others)"),
        (&many, " (or 64 others or more)"),
    ] {
        let report = folded(names);
        let text = rendered(&report, Format::Text);
        assert!(text.contains(&format!("make<User>(int)+0x4{mark} [")), "{text}");
        assert_eq!(text.contains("(or "), !names.is_empty(), "{text}");
        let page = rendered(&report, Format::Html);
        assert!(page.contains(&format!("(int){mark}\"")), "{mark}");
        let json: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
        let frame = &json["stacks"][0]["frames"][1];
        assert_eq!(frame["symbol"], "make<User>(int)");
        match names {
            [] => assert!(frame.get("folded_with").is_none()),
            names => assert_eq!(frame["folded_with"], serde_json::json!(names)),
        }
        for format in [Format::Folded, Format::Pprof, Format::Bcc, Format::Gperftools] {
            assert_eq!(bytes(&report, format), bytes(&folded(&[]), format), "{format:?}");
        }
    }
}

/// Frames that differ only in the abbreviated part of their names are one frame of a flame graph, unless full
/// names are requested.
#[test]
fn equal_abbreviated_frames_merge() {
    let mut both = of_style(NameStyle::Abbreviated);
    let other = "std::vector<int, std::allocator<int>>::push_back(int&&)";
    let frames = vec![
        inlined("libx.so", other, &[NEW]),
        samples::frame("libx.so", "main"),
    ];
    both.stacks
        .push(samples::with_frames(both.stacks[0].clone(), frames));
    samples::renew(&mut both);
    let line = format!("main;{PUSH_SHORT};{NEW_SHORT} 960\n");
    assert_eq!(rendered(&both, Format::Folded), line);
    both.names = NameStyle::Verbatim;
    assert_eq!(rendered(&both, Format::Folded).lines().count(), 2);
}
