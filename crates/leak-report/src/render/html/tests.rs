//! The page's data as its scripts read them: sums, bounds, and that all of it is text.

mod pinned;
mod python;

use crate::samples;
use serde_json::Value;
use unwind_tables::walk::{End, FoundBy, LeftOut};

use super::*;
use crate::model::leak::Change;
use crate::model::{Amount, Spread};
use crate::model::{Reason, Stack, Suppression, TimeOfDay};
use crate::render::Format;
use crate::render::tests::{frame, full, location, module, named, report, stack};
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn amount(bytes: u64, blocks: u64) -> Amount {
    Amount { bytes, blocks }
}

fn written(page: &Page) -> String {
    let mut out = Vec::new();
    page.write(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The JSON text of the data in a page.
fn data_text(page: &str) -> &str {
    let (_, after) = page
        .split_once(r#"<script type="application/json" id="data">"#)
        .unwrap();
    after.split_once("</script>").unwrap().0
}

/// The data of a page; rows of its tables with their names.
fn data_of(page: &Page) -> Value {
    let mut data: Value = serde_json::from_str(data_text(&written(page))).unwrap();
    for table in ["frames", "sites", "holders"] {
        let columns = data[table]["columns"].as_array().unwrap();
        let rows = data[table]["rows"].as_array().unwrap();
        let named = |row: &Value| -> Value {
            let values = row.as_array().unwrap().iter().cloned();
            let names = columns.iter().map(|name| name.as_str().unwrap().to_owned());
            names.zip(values).collect()
        };
        data[table] = rows.iter().map(named).collect();
    }
    data
}

/// Columns of each site at each moment, as `model.js` computes them: bytes and blocks outstanding, allocated
/// and young.
fn replayed(data: &Value) -> Vec<Vec<Vec<u64>>> {
    let width = if data["are_estimates"] == true { 10 } else { 6 };
    let mut now = vec![vec![0; width]; data["sites"].as_array().unwrap().len()];
    let moments = data["snapshots"].as_array().unwrap().iter();
    moments
        .map(|moment| {
            let rows: Vec<u64> = serde_json::from_value(moment["rows"].clone()).unwrap();
            let mut site = 0;
            for row in rows.chunks(width + 1) {
                site += usize::try_from(row[0]).unwrap();
                now[site] = row[1..].to_vec();
            }
            now.clone()
        })
        .collect()
}

/// Asserts that the sums over the sites equal the totals at each moment.
fn check_sums(data: &Value) {
    for (moment, sites) in data["snapshots"].as_array().unwrap().iter().zip(replayed(data)) {
        for column in 0..6 {
            let sum: u64 = sites.iter().map(|site| site[column]).sum();
            assert_eq!(moment["all"][column], sum, "column {column}");
        }
    }
}

/// A report of `sites` sites in several modules, `second` seconds after the attach; each site grows with
/// time.
fn many(sites: u64, second: u64) -> Report {
    let modules: Vec<_> = (0..7)
        .map(|at| module(&format!("/opt/lib{at}.so"), Some("ab12")))
        .collect();
    let stacks = (0..sites).map(|site| {
        let frames = (0..12).map(|depth| {
            // Outer frames are shared, as callers are.
            let place = if depth < 4 {
                site * 16 + depth
            } else {
                site / 50 * 16 + depth
            };
            let name = format!("Namespace{place}::function_of_a_plausible_length(int, char const*)");
            let at = location(&modules[(place % 7) as usize], 0x1000 + place * 64);
            frame(at, FoundBy::Cfi, named(&name, 16))
        });
        let outstanding = amount((sites - site) * 10 * second, (sites - site) * second);
        stack(outstanding, End::Complete, None, frames.collect())
    });
    let mut report = report(stacks.collect());
    report.elapsed = SECOND * u32::try_from(second).unwrap();
    report.time.second = u8::try_from(second % 60).unwrap();
    report
}

fn totals(report: &Report) -> [u64; 4] {
    let sum = |of: fn(&Stack) -> Amount| report.stacks.iter().map(of).sum::<Amount>();
    let (outstanding, allocated) = (
        sum(|stack| stack.outstanding.amount),
        sum(|stack| stack.allocated.amount),
    );
    [
        outstanding.bytes,
        outstanding.blocks,
        allocated.bytes,
        allocated.blocks,
    ]
}

/// Sites are identified across reports although each report has a dictionary of its own, and their sums equal
/// the reports' totals.
#[test]
fn sums_equal_the_reports_totals() {
    let mut page = Page::default();
    let reports = [many(40, 1), many(40, 2), many(55, 4)];
    reports.iter().for_each(|report| page.add(report));
    let data = data_of(&page);
    assert_eq!(data["sites"].as_array().unwrap().len(), 55);
    check_sums(&data);
    for (moment, report) in data["snapshots"].as_array().unwrap().iter().zip(&reports) {
        let all: Vec<u64> = serde_json::from_value(moment["all"].clone()).unwrap();
        assert_eq!(all[..4], totals(report));
        assert_eq!(moment["time"], report.time.to_string());
    }
}

/// However many sites there are, the page has the largest, with full stacks; the others are merged, and the
/// sums over all still equal the reports' totals.
#[test]
fn largest_sites_are_kept_and_others_merged() {
    let reports = [many(3000, 1), many(3000, 3)];
    for limit in [30, 300, 2999] {
        let mut page = Page::new(Limits {
            sites: limit,
            ..Limits::default()
        });
        reports.iter().for_each(|report| page.add(report));
        let data = data_of(&page);
        check_sums(&data);
        let sites = data["sites"].as_array().unwrap();
        let (last, kept) = sites.split_last().unwrap();
        assert_eq!(kept.len(), limit);
        assert!(kept.iter().all(|site| site["merged"] == 0));
        assert_eq!(last["merged"], 3000 - kept.len());
        let outstanding: Vec<u64> = replayed(&data)[1].iter().map(|site| site[0]).collect();
        let (others, outstanding) = outstanding.split_last().unwrap();
        assert!(outstanding.is_sorted_by(|a, b| a >= b) && *others > 0);
        for site in kept {
            let mut depth = 0;
            let mut node = site["node"].as_u64().unwrap();
            while node != 0 {
                depth += 1;
                node = data["callers"][usize::try_from(node).unwrap()].as_u64().unwrap();
            }
            assert_eq!(depth, 12);
        }
    }
}

/// A page limited to no sites has only sums.
#[test]
fn page_without_sites_has_sums() {
    let mut page = Page::new(Limits {
        sites: 0,
        ..Limits::default()
    });
    page.add(&full());
    let data = data_of(&page);
    check_sums(&data);
    assert_eq!(data["sites"].as_array().unwrap().len(), 1);
    // Two of its three stacks are one site, as they are the same code.
    assert_eq!(data["sites"][0]["merged"], 2);
}

/// A name of megabytes is cut, and does not push others out.
#[test]
fn long_names_are_cut() {
    let long = named(&"x".repeat(9 << 20), 1);
    let leaker = module("/opt/leaker", None);
    let at = |address| location(&leaker, address);
    let stacks = vec![
        stack(
            amount(9, 1),
            End::Complete,
            None,
            vec![frame(at(1), FoundBy::Cfi, long)],
        ),
        stack(
            amount(8, 1),
            End::Complete,
            None,
            vec![frame(at(2), FoundBy::Cfi, named("short", 1))],
        ),
    ];
    let mut page = Page::default();
    page.add(&report(stacks));
    let text = written(&page);
    assert!(text.len() < 1 << 18, "{}", text.len());
    assert!(text.contains("… (and ") && text.contains(r#""short""#));
}

/// Text that looks like markup stays within the data, which contain no `<`; the page has no scripts but its
/// own.
#[test]
fn names_are_no_markup() {
    let hostile = "</script><img src=x onerror=alert(1)><!--<script>&amp;\u{202e}\0";
    let evil = module(&format!("/tmp/{hostile}.so"), Some(hostile));
    let names = named(hostile, 4);
    let mut hostile_report = report(vec![stack(
        amount(64, 2),
        End::NoCfi,
        Some(location(&evil, 0x20)),
        vec![frame(location(&evil, 0x10), FoundBy::Fp, names)],
    )]);
    hostile_report.stacks[0].allocator = samples::allocator(hostile);
    samples::renew(&mut hostile_report);
    hostile_report.targets[0].comm = hostile.to_owned();
    hostile_report.targets[0].exe = Some(hostile.into());
    let mut page = Page::default();
    page.add(&full());
    page.add(&hostile_report);
    let text = written(&page);
    let data = data_text(&text);
    assert!(!data.contains('<') && !data.contains('\u{202e}'));
    let markup = text.replace(data, "");
    assert_eq!(markup.matches("<script").count(), 2);
    assert_eq!(markup.matches("</script>").count(), 2);
    assert!(!markup.contains("onerror"));
    let parsed: Value = serde_json::from_str(data).unwrap();
    let shown = "</script><img src=x onerror=alert(1)><!--<script>&amp;\\u{202e}\\u{0}";
    assert!(parsed["strings"].as_array().unwrap().contains(&shown.into()));
    assert_eq!(parsed["processes"][0]["comm"], shown);
}

/// If there are more snapshots than allowed, the first and the last are kept, and the number dropped is
/// given.
#[test]
fn moments_are_bounded() {
    let mut page = Page::new(Limits {
        snapshots: 5,
        ..Limits::default()
    });
    (1..=40).for_each(|second| page.add(&many(10, second)));
    let data = data_of(&page);
    let moments = data["snapshots"].as_array().unwrap();
    assert_eq!((moments.len(), &data["thinned"]), (5, &Value::from(35)));
    let seconds = |at: usize| moments[at]["elapsed_ns"].as_u64().unwrap() / 1_000_000_000;
    assert_eq!((seconds(0), seconds(4)), (1, 40));
    check_sums(&data);
}

/// A baseline marked between two reports is a snapshot of its own, with current amounts less the changes
/// since; a baseline at the time of a report marks that snapshot. Later reports do not add it again. Only
/// reports have reasons.
#[test]
fn baselines_are_moments() {
    let marked_at = TimeOfDay {
        hour: 9,
        minute: 5,
        second: 1,
    };
    let mut second = many(3, 4);
    second.compared.marked = Some(marked_at);
    second.reason = Some(Reason::End);
    second.compared.since_baseline = SECOND;
    second.stacks[0].recent.since_baseline = Change {
        allocated: amount(100, 4).into(),
        freed: amount(30, 1).into(),
    };
    let mut third = many(3, 5);
    third.compared.marked = Some(marked_at);
    third.compared.since_baseline = 2 * SECOND;
    let mut page = Page::default();
    [many(3, 2), second.clone(), third]
        .iter()
        .for_each(|report| page.add(report));
    let data = data_of(&page);
    check_sums(&data);
    let moments = data["snapshots"].as_array().unwrap();
    let marked: Vec<bool> = moments.iter().map(|moment| moment["marked"] == true).collect();
    assert_eq!(marked, [false, true, false, false]);
    assert_eq!(moments[1]["time"], "09:05:01");
    let reasons = moments.iter().map(|moment| moment["reason"].as_str());
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [None, None, Some("the trace ended"), None]
    );
    let (outstanding, allocated) = (second.stacks[0].outstanding, second.stacks[0].allocated);
    let at_mark = &replayed(&data)[1][0];
    assert_eq!(
        at_mark[..4],
        [
            outstanding.amount.bytes - 70,
            outstanding.amount.blocks - 3,
            allocated.amount.bytes - 100,
            allocated.amount.blocks - 4
        ]
    );

    let mut page = Page::default();
    second.compared.since_baseline = 2 * SECOND;
    [many(3, 2), second].iter().for_each(|report| page.add(report));
    let data = data_of(&page);
    assert_eq!(data["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(data["snapshots"][0]["marked"], true);
}

/// Sites that cannot be leaks are flagged, and summed up separately.
#[test]
fn non_suspects_are_flagged() {
    let mut mapped = many(4, 1);
    for (stack, kind) in mapped.stacks.iter_mut().zip(crate::model::RegionKind::ALL) {
        stack.kind = Some(kind);
    }
    let mut page = Page::default();
    page.add(&mapped);
    let suspects = |data: &Value| -> Vec<(Value, Value)> {
        let sites = data["sites"].as_array().unwrap().iter();
        sites
            .map(|site| (site["kind"].clone(), site["is_suspect"].clone()))
            .collect()
    };
    let pair = |kind: i64, is_suspect: bool| (kind.into(), is_suspect.into());
    assert_eq!(
        suspects(&data_of(&page)),
        [pair(0, true), pair(1, true), pair(2, false), pair(3, false)]
    );
    let mut page = Page::new(Limits {
        sites: 0,
        ..Limits::default()
    });
    page.add(&mapped);
    let data = data_of(&page);
    assert_eq!(suspects(&data), [pair(-1, false), pair(-1, true)]);
    check_sums(&data);
}

/// Suppressed sites are flagged, with their rule; the amount of each rule is given.
#[test]
fn suppressed_sites_are_flagged() {
    let mut known = many(3, 1);
    known.stacks[0].suppressed_by = Some(Arc::new(Suppression {
        rule: "leak:<Namespace>\u{1b}".to_owned(),
        place: "known.supp:3".to_owned(),
    }));
    let mut page = Page::default();
    page.add(&known);
    let data = data_of(&page);
    check_sums(&data);
    let sites = data["sites"].as_array().unwrap().iter();
    let sites = sites.map(|site| {
        let rule = usize::try_from(site["rule"].as_u64().unwrap()).unwrap();
        (
            site["is_suspect"] == true,
            data["strings"][rule].as_str().unwrap(),
        )
    });
    let expected = [(false, "leak:<Namespace>\\u{1b}"), (true, ""), (true, "")];
    assert_eq!(sites.collect::<Vec<_>>(), expected);
    let left_out = data["health"]["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 1);
    assert!(
        left_out[0]
            .as_str()
            .unwrap()
            .starts_with("30 B in 3 blocks from 1 stack by leak:<Namespace>")
    );
}

/// A site has the verdict of the last report only, and the page that of all sites with how it was made.
#[test]
fn verdicts_are_of_the_last_report() {
    let mut page = Page::default();
    page.add(&crate::samples::judged());
    let data = data_of(&page);
    let sites: Vec<_> = data["verdicts"].as_array().unwrap().iter().collect();
    assert_eq!(sites.len(), 2, "the third stack is of the first one's site");
    assert_eq!(sites[0][1], serde_json::json!([320, 8, 40, 1, 80, 2, 40, 1]));
    assert_eq!(
        data["verdict"]["all"],
        serde_json::json!([320, 8, 40, 1, 120, 3, 40, 1])
    );
    let lines = data["verdict"]["lines"].as_array().unwrap();
    assert!(
        lines[1].as_str().unwrap().starts_with("made in 5 passes"),
        "{lines:?}"
    );
    page.add(&full());
    let data = data_of(&page);
    assert_eq!(data["verdicts"].as_array().unwrap().len(), 0);
    assert!(data["verdict"].is_null());
}

/// Peaks are of the last report, and their sum is that of all sites, however few sites have a row.
#[test]
fn peaks_are_of_the_last_report() {
    let mut page = Page::default();
    page.add(&crate::samples::peaked());
    let data = data_of(&page);
    assert_eq!(
        data["peaks"],
        serde_json::json!([[0, [1000, 13]]]),
        "two stacks of one site"
    );
    assert_eq!(data["peak"]["all"], serde_json::json!([1000, 13]));
    let words = data["peak"]["words"].as_str().unwrap();
    assert!(words.contains("7.5 s after the attach"), "{words}");
    page.add(&full());
    let data = data_of(&page);
    assert_eq!(data["peaks"].as_array().unwrap().len(), 0);
    assert!(data["peak"].is_null());
}

/// Holders are of the last report, too; each chain has the site whose blocks it holds.
#[test]
fn holders_are_of_the_last_report() {
    let mut page = Page::default();
    page.add(&crate::samples::held());
    let data = data_of(&page);
    let chains = data["holders"].as_array().unwrap();
    let first = serde_json::json!({
        "site": 0,
        "path": ["cache()::entries (leaker.cpp:7)"],
        "bytes": 40,
        "blocks": 1,
        "retained": 200,
    });
    assert!(chains.len() == 3 && chains.contains(&first), "{chains:?}");
    let lines = data["held"][0][1].as_array().unwrap();
    assert!(
        lines.contains(&"retains at least 200 B in 5 blocks".into()),
        "{lines:?}"
    );
    let sizes = "sizes: 8 B (8.3%), 40 B to 48 B (91.6%), by threads worker (98.3%), leaker (1.6%)";
    assert_eq!(lines[0], sizes);
    page.add(&crate::samples::judged());
    let data = data_of(&page);
    assert_eq!(data["holders"], serde_json::json!([]));
    assert_eq!(
        data["held"][0][1].as_array().unwrap().len(),
        2,
        "sizes and life spans"
    );
}

/// Estimates have standard errors, and rows of exact amounts are shorter.
#[test]
fn estimates_have_errors() {
    let mut sampled = full();
    sampled.sampling = crate::model::Sampling::Bytes(4096);
    sampled.stacks[0].outstanding.spread = Spread {
        recorded: 3,
        bytes: 90_000,
        blocks: 25 << 32,
    };
    let mut page = Page::default();
    page.add(&sampled);
    let data = data_of(&page);
    assert_eq!(data["are_estimates"], true);
    assert_eq!(replayed(&data)[0][0][6..], [300, 50, 0, 0]);
    assert_eq!(
        data["health"]["sampling"][0].as_str().map(|text| &text[..3]),
        Some("one")
    );
}

/// Frames that were left out are listed by site, with the site's number on the page.
#[test]
fn frames_left_out_are_told() {
    let mut cut = full();
    cut.stacks[1].left_out = Some(LeftOut {
        after: 2,
        frames: 3488,
    });
    let mut page = Page::default();
    page.add(&cut);
    assert_eq!(data_of(&page)["left_out"], serde_json::json!([[1, [2, 3488]]]));
}

/// A page can be made of one report, and of none.
#[test]
fn pages_of_one_and_of_no_report() {
    let mut out = Vec::new();
    crate::render::render(&full(), Format::Html, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
    let data = data_of(&Page::default());
    assert_eq!(data["snapshots"].as_array().unwrap().len(), 0);
}

/// Exact names of abbreviated ones are included once each; without abbreviations there are none.
#[test]
fn exact_names() {
    let module = module("/bin/p", None);
    let frames = [
        "std::vector<int, std::allocator<int> >::f()",
        "std::vector<int, std::allocator<int>>::f()",
        "main",
    ];
    let frames = (0..)
        .zip(frames)
        .map(|(at, name)| frame(location(&module, 0x10 * (at + 1)), FoundBy::Cfi, named(name, 1)));
    let mut one = report(vec![stack(amount(1, 1), End::Complete, None, frames.collect())]);
    let exact = |report: &Report| {
        let mut page = Page::default();
        page.add(report);
        let data = data_of(&page);
        let text =
            |number: &Value| data["strings"][usize::try_from(number.as_u64().unwrap()).unwrap()].to_string();
        let pairs = data["exact"].as_array().unwrap().iter();
        pairs
            .map(|pair| [text(&pair[0]), text(&pair[1])])
            .collect::<Vec<_>>()
    };
    let short = "\"std::vector<int>::f()\"";
    assert_eq!(
        exact(&one),
        [
            [short, "\"std::vector<int, std::allocator<int>>::f()\""],
            [short, "\"std::vector<int, std::allocator<int> >::f()\""],
        ]
    );
    one.names = crate::model::NameStyle::Verbatim;
    assert!(exact(&one).is_empty());
}

/// Each site has the position of its responsible function: outside the frames of the allocator and the
/// library, also if it is inlined; the innermost frame if there is no other.
#[test]
fn sites_name_their_responsible_function() {
    let new = || samples::frame("libstdc++.so.6.0.30", "operator new(unsigned long)");
    let outstanding_stack = |frames, bytes| Stack {
        outstanding: amount(bytes, 1).into(),
        ..samples::stack(frames)
    };
    let mut page = Page::default();
    page.add(&report(vec![
        outstanding_stack(vec![new(), samples::frame("app", "Cache::insert(int)")], 400),
        outstanding_stack(
            vec![
                new(),
                samples::inlined("app", "main", &["std::move<int>(int&)", "fill()", "f()"]),
            ],
            300,
        ),
        outstanding_stack(vec![samples::frame("libc.so.6", "strdup")], 200),
        outstanding_stack(Vec::new(), 100),
    ]));
    let sites = data_of(&page)["sites"].clone();
    let owners: Vec<_> = sites
        .as_array()
        .unwrap()
        .iter()
        .map(|site| site["owner"].clone())
        .collect();
    assert_eq!(
        owners,
        [[1, 0], [1, 2], [0, 0], [0, 0]].map(|owner| serde_json::json!(owner))
    );
}
