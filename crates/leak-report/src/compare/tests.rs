//! Comparisons of hand-made reports.

mod pinned;

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use unwind_tables::addr::{Avma, Svma};
use unwind_tables::walk::{FoundBy, LeftOut};

use super::*;
use crate::model::{
    Amount, Dictionary, Frame, FrameId, InlinedFrame, Judgement, Location, Module, ModuleId, Place, Report,
    Sampling, Stack, StackRef, Symbol, Symbolized, TableFacts, Verdict,
};
use crate::samples;

fn module(path: &str, build_id: Option<&str>) -> ModuleId {
    samples::module_of(&samples::plain_module(path, build_id))
}

/// Frame at an address of a module, in a function, with functions inlined there, innermost first.
fn frame(module: &ModuleId, svma: u64, function: Option<&str>, inlined: &[&str]) -> FrameId {
    let names = Symbolized {
        symbol: function.map(|name| Symbol {
            name: name.into(),
            offset: Some(4),
        }),
        inlined: inlined
            .iter()
            .map(|&name| InlinedFrame {
                symbol: Some(name.into()),
                file: None,
                line: None,
            })
            .collect(),
        ..Symbolized::default()
    };
    samples::frame_of(Frame {
        at: Location {
            pc: Avma::new(0x7000_0000 + svma),
            place: Some(Place {
                module: *module,
                svma: Svma::new(svma),
            }),
        },
        exact: false,
        found_by: FoundBy::Cfi,
        names: samples::names_of(&names),
    })
}

fn stack(bytes: u64, blocks: u64, frames: Vec<FrameId>) -> Stack {
    let stack = Stack {
        outstanding: Amount { bytes, blocks }.into(),
        allocated: Amount {
            bytes: bytes * 2,
            blocks: blocks * 2,
        }
        .into(),
        ..crate::samples::full::full().stacks[0].clone()
    };
    samples::with_frames(stack, frames)
}

fn report(seconds: u64, stacks: Vec<Stack>) -> Report {
    Report {
        elapsed: Duration::from_secs(seconds),
        read_at: UNIX_EPOCH + Duration::from_secs(seconds),
        stacks,
        ..crate::samples::full::full()
    }
}

fn side<'a>(name: &str, report: &'a Report) -> Side<'a> {
    Side {
        name: name.to_owned(),
        report,
    }
}

fn compare<'a>(before: &'a Report, after: &'a Report, builds: &Builds) -> Comparison<'a> {
    Comparison::of(side("a", before), side("b", after), builds)
}

fn first_function(stack: StackRef<'_>) -> String {
    stack.frames().next().unwrap().function().unwrap().to_owned()
}

/// First function, bytes before, bytes after, and state of each site.
fn found(comparison: &Comparison<'_>) -> Vec<(String, u64, u64, &'static str)> {
    let name = |site: &Difference<'_>| first_function(site.stack);
    let sites = comparison.sites.iter();
    sites
        .map(|site| {
            let (before, after) = (site.before.shown.amount, site.after.shown.amount);
            (name(site), before.bytes, after.bytes, site.state().name())
        })
        .collect()
}

fn expected<'a>(sites: &[(&'a str, u64, u64, &'static str)]) -> Vec<(String, u64, u64, &'static str)> {
    let own = |&(name, before, after, state): &(&'a str, u64, u64, &'static str)| {
        (name.to_owned(), before, after, state)
    };
    sites.iter().map(own).collect()
}

fn before_and_after() -> (Report, Report) {
    let leaker = module("/opt/leaker", Some("aa"));
    let at = |svma, name| vec![frame(&leaker, svma, Some(name), &[])];
    let before = report(
        5,
        vec![
            stack(900, 9, at(0x10, "stays")),
            stack(400, 4, at(0x20, "shrinks")),
            stack(300, 3, at(0x30, "goes")),
            stack(100, 1, at(0x40, "grows")),
            stack(0, 0, at(0x60, "idle")),
        ],
    );
    let after = report(
        65,
        vec![
            stack(1000, 10, at(0x40, "grows")),
            stack(900, 9, at(0x10, "stays")),
            stack(500, 5, at(0x50, "comes")),
            stack(100, 1, at(0x20, "shrinks")),
            stack(0, 0, at(0x30, "goes")),
        ],
    );
    (before, after)
}

/// Sites are ranked by growth, with both amounts; a site without outstanding blocks before is new, without
/// any after is gone.
#[test]
fn ranked_by_growth() {
    let (before, after) = before_and_after();
    let comparison = compare(&before, &after, &Builds::of_one_trace());
    assert_eq!(
        found(&comparison),
        expected(&[
            ("grows", 100, 1000, "grown"),
            ("comes", 0, 500, "new"),
            ("stays", 900, 900, "unchanged"),
            ("idle", 0, 0, "unchanged"),
            ("shrinks", 400, 100, "shrunk"),
            ("goes", 300, 0, "gone"),
        ])
    );
    let (was, is) = comparison.total();
    assert_eq!((was.shown.amount.bytes, is.shown.amount.bytes), (1700, 2500));
    assert!(comparison.notes.is_empty());
}

/// The text lists sites that grew, largest growth first, then sites that shrank, at most `top` of each.
#[test]
fn text_of_a_difference() {
    let (before, after) = before_and_after();
    let comparison = compare(&before, &after, &Builds::of_one_trace());
    let mut out = Vec::new();
    render_difference_text(&comparison, 2, &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
Difference from a (09:05:07, after 5.0 s) to b (09:05:07, after 65.0 s):

+900 B in +9 blocks (grown): grows
   100 B in 1 block before, 1000 B in 10 blocks after, via malloc
    > grows+0x4 [leaker]
      end: complete

+500 B in +5 blocks (new): comes
   0 B in 0 blocks before, 500 B in 5 blocks after, via malloc
    > comes+0x4 [leaker]
      end: complete

-300 B in -3 blocks (gone): goes
   300 B in 3 blocks before, 0 B in 0 blocks after, via malloc
    > goes+0x4 [leaker]
      end: complete

-300 B in -3 blocks (shrunk): shrinks
   400 B in 4 blocks before, 100 B in 1 block after, via malloc
    > shrinks+0x4 [leaker]
      end: complete

  Total:     1.6 KiB (1700 B) in 17 blocks before, 2.4 KiB (2500 B) in 25 blocks after: +800 B, +8 blocks
  Sites:     1 new, 1 grown, 2 unchanged, 1 shrunk, 1 gone
  Stacks:    2 of 3 complete (93.3% of allocations) before, 2 of 3 complete (93.3% of allocations) after
  Lost:      9 blocks, 1.5 MiB (1600000 B) before, 9 blocks, 1.5 MiB (1600000 B) after
");
    let mut one = Vec::new();
    render_difference_text(&comparison, 1, &mut one).unwrap();
    let one = String::from_utf8(one).unwrap();
    assert!(one.contains("grows") && one.contains("goes"), "{one}");
    assert!(!one.contains("comes") && !one.contains("shrinks"), "{one}");
}

/// The JSON lists all sites, with both amounts.
#[test]
fn json_of_a_difference() {
    let (before, after) = before_and_after();
    let comparison = compare(&before, &after, &Builds::of_one_trace());
    let mut out = Vec::new();
    render_difference_json(&comparison, None, &mut out).unwrap();
    let value: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(value["schema_version"], 1);
    assert_eq!(
        (&value["before"]["name"], &value["after"]["time"]),
        (&json!("a"), &json!("09:05:07"))
    );
    assert_eq!(value["growth"], json!({"bytes": 800, "blocks": 8}));
    assert_eq!(
        value["states"],
        json!({"new": 1, "grown": 1, "unchanged": 2, "shrunk": 1, "gone": 1})
    );
    assert_eq!(value["before"]["complete"]["all_allocations"], 30);
    assert_eq!(value["after"]["lost"]["blocks"], 9);
    let site = &value["sites"][0];
    assert_eq!(site["growth"], json!({"bytes": 900, "blocks": 9}));
    assert_eq!(site["before"]["shown"], json!({"bytes": 100, "blocks": 1}));
    assert_eq!(site["after"]["allocated"], json!({"bytes": 2000, "blocks": 20}));
    assert_eq!(
        (&site["state"], &site["frames"][0]["symbol"]),
        (&json!("grown"), &json!("grows"))
    );
    assert_eq!(value["sites"].as_array().unwrap().len(), 6);
    assert_eq!(value.get("others"), None);
}

/// A bounded difference has the sites that text shows, and the sum of the others; its totals stay whole.
#[test]
fn bounded_json_of_a_difference() {
    let (before, after) = before_and_after();
    let comparison = compare(&before, &after, &Builds::of_one_trace());
    let json = |top| -> Value {
        let mut out = Vec::new();
        render_difference_json(&comparison, top, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    };
    let whole = json(None);
    for top in [0, 1, 2, 9] {
        let bounded = json(Some(top));
        assert_eq!(
            (&bounded["growth"], &bounded["states"]),
            (&whole["growth"], &whole["states"])
        );
        let sites = bounded["sites"].as_array().unwrap();
        let growth = |value: &Value| value["growth"]["bytes"].as_i64().unwrap();
        assert!(
            sites.iter().filter(|site| growth(site) > 0).count() <= top,
            "{bounded}"
        );
        assert!(
            sites.iter().filter(|site| growth(site) < 0).count() <= top,
            "{bounded}"
        );
        let others = &bounded["others"];
        assert_eq!(sites.len() as u64 + others["sites"].as_u64().unwrap(), 6);
        let sum = sites.iter().map(growth).sum::<i64>() + growth(others);
        assert_eq!(sum, growth(&whole), "{bounded}");
    }
}

/// Dictionary with these modules of the sample dictionary.
fn dictionary(modules: &[ModuleId]) -> Dictionary {
    let (made, mut dictionary) = (samples::dictionary(), Dictionary::default());
    for &module in modules {
        dictionary.add_module(&made.module(module).get().map(|_, &text| made.text(text).into()));
    }
    dictionary
}

fn of_modules(modules: [&[ModuleId]; 2]) -> Builds {
    let dictionaries = modules.map(dictionary);
    Builds::of_traces(dictionaries.each_ref().map(trace))
}

fn trace(dictionary: &Dictionary) -> Trace<'_> {
    Trace {
        dictionary,
        kernel: None,
    }
}

/// Sites of a common build are compared by address; sites of different builds by function, inlined or not.
#[test]
fn other_builds_are_compared_by_function() {
    let (libc, old, new) = (
        module("/lib/libc.so.6", Some("cc")),
        module("/opt/leaker", Some("aa")),
        module("/opt/leaker", Some("bb")),
    );
    let libc_frame = || frame(&libc, 0x7000, Some("start"), &[]);
    let before = report(
        1,
        vec![
            stack(10, 1, vec![frame(&old, 0x10, Some("f"), &["g"]), libc_frame()]),
            stack(20, 1, vec![frame(&old, 0x20, Some("f"), &["g"]), libc_frame()]),
            stack(
                40,
                1,
                vec![
                    frame(&old, 0x30, Some("h"), &[]),
                    frame(&libc, 0x7008, Some("start"), &[]),
                ],
            ),
        ],
    );
    let g_alone = frame(&new, 0x99, Some("g"), &[]);
    let after = report(
        2,
        vec![
            stack(
                100,
                1,
                vec![g_alone, frame(&new, 0x88, Some("f"), &[]), libc_frame()],
            ),
            stack(200, 1, vec![frame(&new, 0x77, Some("h"), &[]), libc_frame()]),
        ],
    );
    let modules = [[libc, old], [libc, new]];
    let builds = of_modules([&modules[0], &modules[1]]);
    let comparison = compare(&before, &after, &builds);
    // `h` is one site, although another place in a libc function calls it.
    assert_eq!(
        found(&comparison),
        expected(&[("h", 40, 200, "grown"), ("g", 30, 100, "grown")])
    );
    let dictionaries = modules.each_ref().map(|modules| dictionary(modules));
    let traces = dictionaries.each_ref().map(trace);
    assert_eq!(builds.rebuilt(&traces), ["/opt/leaker"]);
}

/// Builds without a build-id are equal if their tables are, and for the kernel if the release is.
#[test]
fn builds_without_an_id() {
    let plain = module("/opt/leaker", None);
    let with_table = samples::module_of(&Module {
        table: Some(TableFacts::default()),
        ..samples::plain_module("/opt/leaker", None)
    });
    let is_common = |module: &ModuleId, kernels: [Option<&str>; 2]| {
        let dictionary = dictionary(&[*module]);
        let traces = kernels.map(|kernel| Trace {
            dictionary: &dictionary,
            kernel,
        });
        Builds::of_traces(traces).rebuilt(&traces).is_empty()
    };
    assert!(!is_common(&plain, [None; 2]));
    assert!(is_common(&with_table, [None; 2]));
    assert!(is_common(&plain, [Some("6.1"); 2]));
    assert!(!is_common(&plain, [Some("6.1"), Some("6.2")]));
}

/// Reports with different subjects or settings are compared with a note; reports of one trace get none.
#[test]
fn incomparable_reports_get_a_note() {
    let (before, mut after) = before_and_after();
    after.sampling = Sampling::Calls(100);
    after.targets[0].exe = Some("/opt/other\n".into());
    after.compared.older = Some(Duration::from_secs(1));
    let notes = compare(&before, &after, &Builds::default()).notes;
    assert_eq!(
        notes,
        [
            "they are of different programs: leaker and other\\n",
            "allocations were sampled differently: all, and one of 100",
            "blocks count as young up to different ages (-o)",
        ]
    );
    assert!(compare(&before, &after, &Builds::of_one_trace()).notes.is_empty());
    let comparison = compare(&before, &after, &Builds::default());
    let mut text = Vec::new();
    render_difference_text(&comparison, 10, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("  Note:      they are of different programs"),
        "{text}"
    );
    assert!(text.contains("\n   ± "), "{text}");
}

/// Sites are ranked by rate of growth, not by size; each site has an amount at each point, 0 before it
/// appeared.
#[test]
fn trends() {
    let leaker = module("/opt/leaker", Some("aa"));
    let at = |svma, name| vec![frame(&leaker, svma, Some(name), &[])];
    let mut trend = Trend::new(Builds::of_one_trace());
    for minute in 0..6 {
        let mut stacks = vec![
            stack(90_000, 9, at(0x10, "cache")),
            stack(100 * minute + 7, minute + 1, at(0x20, "leak")),
        ];
        if minute >= 2 {
            stacks.push(stack(10 * minute, 1, at(0x30, "late")));
        }
        let report = report(60 * minute, stacks);
        trend.add(format!("report {minute}"), report);
    }
    trend.finish();
    let names: Vec<_> = trend
        .sites
        .iter()
        .map(|site| first_function(trend.stack(site).unwrap()))
        .collect();
    assert_eq!(names, ["leak", "late", "cache"]);
    assert!((trend.sites[0].bytes_per_minute - 100.0).abs() < 1e-9);
    assert!((trend.sites[0].blocks_per_minute - 1.0).abs() < 1e-9);
    let amounts: Vec<_> = trend.sites[1].amounts.iter().map(|amount| amount.bytes).collect();
    assert_eq!(amounts, [0, 0, 20, 30, 40, 50]);
    assert_eq!((trend.sites[0].rises(), trend.sites[2].rises()), (5, 0));
    let mut text = Vec::new();
    render_trend_text(&trend, 1, &mut text).unwrap();
    insta::assert_snapshot!(String::from_utf8(text).unwrap(), @r"
Trend over 6 points in 5.0 min, from report 0 to report 5:

+100.0 B/min, +1.0 blocks/min: leak
   rising in 5 of 5 steps ▁▂▃▅▆█: 7, 107, 207, 307, 407, 507 B
   via malloc
    > leak+0x4 [leaker]
      end: complete

  Total:     +110.0 B/min, +1.2 blocks/min: 87.8 KiB (90007 B) in 10 blocks at first, 88.4 KiB (90557 B) in 16 blocks at last
  Sites:     2 of 3 grow
");
    let mut out = Vec::new();
    render_trend_json(&trend, None, &mut out).unwrap();
    let value: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(value["points"].as_array().unwrap().len(), 6);
    assert_eq!(value["sites"][1]["shown"][3], json!({"bytes": 30, "blocks": 1}));
    assert_eq!(value["sites"][0]["slope"]["bytes_per_minute"], json!(100.0));
}

/// With two verdicts, sites are ranked by the growth of the definitely lost amount. A site is shown if its
/// outstanding amount is unchanged and more of it is lost. A report without a verdict does not count as one
/// that lost nothing.
#[test]
fn difference_of_verdicts() {
    let (mut before, mut after) = before_and_after();
    let lost = |stack: &mut Stack, blocks: u64| {
        stack.verdict = Some(Verdict {
            definitely_lost: Amount {
                bytes: 100 * blocks,
                blocks,
            },
            ..Verdict::default()
        });
    };
    before.judgement = Some(Judgement::default());
    after.judgement = Some(Judgement::default());
    lost(&mut before.stacks[1], 3);
    lost(&mut after.stacks[1], 9);
    lost(&mut after.stacks[2], 5);
    let text = |before: &Report, after: &Report| {
        let mut out = Vec::new();
        let comparison = compare(before, after, &Builds::of_one_trace());
        render_difference_text(&comparison, 10, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let both = text(&before, &after);
    let titles: Vec<_> = both.lines().filter(|line| line.contains(" blocks (")).collect();
    assert_eq!(
        titles,
        [
            "+0 B in +0 blocks (unchanged): stays",
            "+500 B in +5 blocks (new): comes",
            "+900 B in +9 blocks (grown): grows",
            "-300 B in -3 blocks (shrunk): shrinks",
            "-300 B in -3 blocks (gone): goes",
        ]
    );
    for expected in [
        "   definitely lost: 0 B in 0 blocks before, 900 B in 9 blocks after: +900 B, +9 blocks\n",
        "  Verdict:   definitely lost: 300 B in 3 blocks before, 1.3 KiB (1400 B) in 14 blocks after: +1100 B, +11 blocks\n",
    ] {
        assert!(both.contains(expected), "no {expected:?} in {both}");
    }
    let mut out = Vec::new();
    render_difference_json(&compare(&before, &after, &Builds::of_one_trace()), None, &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(
        json["sites"][1]["after"]["definitely_lost"],
        json!({"bytes": 500, "blocks": 5})
    );
    assert_eq!(json["before"]["held"]["definitely_lost"]["blocks"], 3);
    before.judgement = None;
    before.stacks.iter_mut().for_each(|stack| stack.verdict = None);
    let one = text(&before, &after);
    assert!(
        one.contains("definitely lost: not judged before, 1.3 KiB (1400 B) in 14 blocks after\n"),
        "{one}"
    );
    let builds = Builds::default();
    let comparison = compare(&before, &after, &builds);
    assert_eq!(comparison.notes, ["only one has a verdict on lost blocks"]);
}

/// A trend has the definitely lost amount at each point that has a verdict.
#[test]
fn trend_of_verdicts() {
    let (mut before, mut after) = before_and_after();
    let mut trend = Trend::new(Builds::of_one_trace());
    after.judgement = Some(Judgement::default());
    after.stacks[0].verdict = Some(Verdict {
        definitely_lost: Amount { bytes: 70, blocks: 7 },
        ..Verdict::default()
    });
    before.judgement = Some(Judgement::default());
    trend.add("a".to_owned(), before);
    trend.add("b".to_owned(), after);
    trend.finish();
    let mut out = Vec::new();
    render_trend_text(&trend, 0, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("  Verdict:   definitely lost ▁█: 0, 70 B\n"),
        "{text}"
    );
    let mut out = Vec::new();
    render_trend_json(&trend, None, &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["points"][1]["held"]["definitely_lost"]["blocks"], 7);
}

/// A stack with frames left out is the same site in both reports, whatever their number, and each format says
/// that frames are left out. It is not the site of the stack that has only the remaining frames.
#[test]
fn differences_of_deep_stacks() {
    let (mut before, mut after) = before_and_after();
    // Both are stacks of `grows`.
    before.stacks[3].left_out = Some(LeftOut { after: 1, frames: 8 });
    after.stacks[0].left_out = Some(LeftOut { after: 1, frames: 9 });
    let both = compare(&before, &after, &Builds::of_one_trace());
    let mut out = Vec::new();
    render_difference_text(&both, 10, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.matches("… 9 frames left out …").count(), 1, "{text}");
    let mut out = Vec::new();
    render_difference_json(&both, None, &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    let sites = json["sites"].as_array().unwrap();
    let deep: Vec<_> = sites
        .iter()
        .filter(|site| site.get("left_out").is_some())
        .collect();
    assert_eq!(deep.len(), 1, "{json}");
    assert_eq!(deep[0]["left_out"], json!({"after": 1, "frames": 9}));
    let (whole, _) = before_and_after();
    let whole = compare(&whole, &after, &Builds::of_one_trace());
    assert_eq!(whole.sites.len(), both.sites.len() + 1);
    let mut trend = Trend::new(Builds::of_one_trace());
    trend.add("a".to_owned(), before);
    trend.add("b".to_owned(), after);
    trend.finish();
    let mut out = Vec::new();
    render_trend_json(&trend, None, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains(r#""left_out":{"after":1,"frames":"#), "{text}");
}

/// Python functions of two runs are matched by name, wherever their code objects are and whatever else
/// changed in the file; those of one run are also matched by line.
#[test]
fn functions_of_python_are_compared_by_name() {
    let interpreter = module("/usr/bin/python3.11", Some("aa"));
    let run = |code, line, bytes| {
        let function = |name, file| samples::python::function(code, Some(name), Some((file, line)));
        let of = |function| {
            let eval = frame(&interpreter, 0x20, Some("_PyEval_EvalFrameDefault"), &[]);
            vec![function, eval]
        };
        let stacks = [
            stack(bytes, 1, of(function("fetch_rows", "/opt/app/db.py"))),
            stack(10, 1, of(function("<module>", "/opt/app/db.py"))),
            stack(20, 1, of(function("<module>", "/opt/app/main.py"))),
        ];
        report(line.into(), stacks.to_vec())
    };
    let (before, after) = (run(0x1000, 5, 100), run(0x7000, 6, 300));
    let names = |builds: &Builds| {
        let comparison = compare(&before, &after, builds);
        let mut found = found(&comparison);
        found.sort();
        found
    };
    let other = [
        ("<module>", 10, 10, "unchanged"),
        ("<module>", 20, 20, "unchanged"),
        ("fetch_rows", 100, 300, "grown"),
    ];
    assert_eq!(
        names(&of_modules([&[interpreter], &[interpreter]])),
        expected(&other)
    );
    assert_eq!(names(&Builds::of_one_trace()).len(), 6);
}
