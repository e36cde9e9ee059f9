//! Verdicts in formats for people and in JSON.

use std::time::Duration;

use super::*;
use crate::model::{
    Amount, BlockList, Hidden, Inside, Losses, Measure, Order, Quantity, StackRecent, Unit, Unjudged, Verdict,
};
use crate::samples::judged;

fn amount(blocks: u64) -> Amount {
    Amount {
        bytes: 40 * blocks,
        blocks,
    }
}

/// Lines of a report that contain a text, trimmed.
fn lines_with(text: &str, part: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.contains(part));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Below its heading, a stack has the verdict on its blocks; the closing block has the total, and how the
/// verdict was made.
#[test]
fn text_of_a_verdict() {
    let text = rendered(&judged(), Format::Text);
    let expected = concat!(
        "LeakLib::slowMemoryLeak(): 480 B in 12 blocks, 92.3% of all, via malloc\n",
        "   8 blocks (320 B) definitely lost, 1 (40 B) indirectly lost, 2 still reachable, 1 unknown\n",
        "   sizes: 8 B (8.3%), 40 B to 48 B (91.6%), by threads worker (98.3%), leaker (1.6%)\n",
        "   12 blocks freed: 8.3% before the thread's next allocation, 91.6% within 1 s\n",
        "      operator new(unsigned long)",
    );
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("\n   1 block (40 B) still reachable\n"), "{text}");
    assert_eq!(
        lines_with(&text, "verdict: "),
        [
            "verdict: 8 blocks (320 B) definitely lost, 1 (40 B) indirectly lost, 3 still reachable, 1 unknown",
            "verdict: made in 5 passes over its memory in 3.2 s (3.0 GiB read); no threads were stopped",
            "verdict: unknown: 1 block not judged within --verdict-limit",
            "verdict: reachable only by interior pointers: 1 behind a length",
            "verdict: not searched: 2 pipes with 9 words; blocks that only these may reach count as unknown",
        ]
    );
    let verbose = verbose(&judged());
    assert!(
        verbose.contains("  Verdict:   8 blocks (320 B) definitely lost"),
        "{verbose}"
    );
    let summary = rendered(&judged(), Format::Summary);
    assert!(
        summary.contains("  Verdict:        8 blocks (320 B) definitely lost")
            && summary.contains("average 40 B\n   8 blocks (320 B) definitely lost"),
        "{summary}"
    );
}

/// Next to a verdict, the closing block does not say that nothing was lost.
#[test]
fn recorded_is_not_lost() {
    let mut report = judged();
    report.losses = Losses::default();
    let text = rendered(&report, Format::Text);
    assert!(
        text.contains(", every block recorded\n") && !text.contains("nothing lost"),
        "{text}"
    );
    report.judgement = None;
    assert!(rendered(&report, Format::Text).contains(", nothing lost\n"));
}

/// The text mentions an earlier verdict that was false, memory that could not be read, and how long threads
/// were stopped.
#[test]
fn text_of_doubts() {
    let mut report = judged();
    if let Some(judgement) = &mut report.judgement {
        judgement.freed_later = amount(3);
        judgement.unreadable = 4096;
        judgement.stopped = Some(Duration::from_micros(28_450));
        judgement.hidden = [(Hidden::Sockets, 12), (Hidden::Pipes, 1)].into();
    }
    let text = rendered(&report, Format::Text);
    for expected in [
        "verdict: 3 blocks (120 B) that an earlier verdict called lost were freed since: that verdict was \
         wrong, and this one may be, too\n",
        "verdict: 4.0 KiB of memory could not be read: ",
        "; threads were stopped for at most 28.4 ms\n",
        "verdict: not searched: 1 pipe, 12 sockets with 9 words; blocks that only these may reach count as \
         unknown\n",
    ] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
}

/// Stacks that lost most come first, by definitely lost and then by indirectly lost amounts, however small
/// and however young these are. An order that the user chose stays.
#[test]
fn lost_stacks_come_first() {
    let mut report = judged();
    report.stacks[0].verdict = Some(Verdict {
        indirectly_lost: amount(9),
        ..Verdict::default()
    });
    report.stacks[1].verdict = Some(Verdict {
        definitely_lost: amount(1),
        ..Verdict::default()
    });
    report.stacks[1].recent = StackRecent {
        young: Some(report.stacks[1].outstanding),
        ..StackRecent::default()
    };
    let lost = |report: &Report| -> Vec<u64> {
        let ranked = report.ranked();
        ranked
            .iter()
            .map(|stack| stack.judged().definitely_lost.blocks)
            .collect()
    };
    assert_eq!(lost(&report), [1, 0]);
    report.sort(Some(Order::Size));
    assert_eq!(lost(&report), [0, 1]);
    report.stacks.iter_mut().for_each(|stack| stack.verdict = None);
    report.order = None;
    assert_eq!(lost(&report), [0], "a young block is hidden");
}

/// The table has a column for definitely lost amounts only with a verdict.
#[test]
fn table_of_a_verdict() {
    let text = rendered(&judged(), Format::Text);
    assert_eq!(
        lines_with(&text, "SITE"),
        ["ID SUSP  DEF. LOST       HELD BLOCKS        GROWTH FREED    AGE   SITE"]
    );
    assert!(!rendered(&full(), Format::Text).contains("DEF. LOST"));
}

/// JSON has the verdict of each stack and the sum over all, with how it was made; without a verdict it has
/// neither.
#[test]
fn json_of_a_verdict() {
    let parsed =
        |report: &Report| -> Value { serde_json::from_str(&rendered(report, Format::Json)).unwrap() };
    let mut report = judged();
    report.stacks[0].blocks = Some(BlockList::default());
    let found = parsed(&report);
    let part = |blocks: u64| json!({"bytes": 40 * blocks, "blocks": blocks});
    assert_eq!(
        found["stacks"][0]["verdict"],
        json!({"definitely_lost": part(8), "indirectly_lost": part(1), "reachable": part(2), "unknown": part(1)})
    );
    assert_eq!(
        found["verdict"],
        json!({
            "definitely_lost": part(8), "indirectly_lost": part(1), "reachable": part(3), "unknown": part(1),
            "passes": 5, "took_ns": 3_200_000_000_u64, "read_bytes": 3_u64 << 30, "stopped_ns": null,
            "unknown_because": {Unjudged::NotSettled.name(): part(1)},
            "freed_later": part(0), "unreadable_bytes": 0,
            "not_seen": {Hidden::Pipes.name(): 2},
            "not_seen_words": 9,
            "only_inside": {Inside::LengthPrefix.name(): part(1)},
            "holders_missing_because": {},
        })
    );
    let without = parsed(&full());
    assert!(without.get("verdict").is_none() && without["stacks"][0].get("verdict").is_none());
}

/// Flame graphs show definitely lost amounts. Their caption has the verdict on all blocks, or says that there
/// is none.
#[test]
fn flame_graphs_of_a_verdict() {
    let lost = |unit| Quantity {
        measure: Measure::DefinitelyLost,
        unit,
    };
    let mut report = judged();
    report.quantity = lost(Unit::Blocks);
    assert_eq!(
        rendered(&report, Format::Folded),
        "main;LeakLib::slowMemoryLeak();operator new(unsigned long) 8\n"
    );
    let svg = rendered(&report, Format::Svg);
    assert!(svg.contains("Definitely lost blocks: leaker (4242)"), "{svg}");
    assert!(
        svg.contains("8 blocks (320 B) definitely lost, 1 (40 B) indirectly"),
        "{svg}"
    );
    let mut without = full();
    without.quantity = lost(Unit::Bytes);
    let svg = rendered(&without, Format::Svg);
    assert!(svg.contains("no verdict on outstanding blocks"), "{svg}");
    let profiles = |report: &Report| -> Vec<String> {
        let file: Value = serde_json::from_str(&rendered(report, Format::Speedscope)).unwrap();
        let profiles = file["profiles"].as_array().unwrap().iter();
        let active = file["activeProfileIndex"].as_u64().unwrap();
        let names = profiles.map(|profile| profile["name"].as_str().unwrap().to_owned());
        names.chain([active.to_string()]).collect()
    };
    let usual = ["Outstanding bytes", "Outstanding blocks", "Allocated bytes"];
    assert_eq!(profiles(&full()), [&usual[..], &["0"]].concat());
    assert_eq!(
        profiles(&judged()),
        [&usual[..], &["Definitely lost bytes", "0"]].concat()
    );
    assert_eq!(
        profiles(&report),
        [
            &usual[..],
            &["Definitely lost bytes", "Definitely lost blocks", "4"]
        ]
        .concat()
    );
}

/// bcc's and libbpf's formats are the same with a verdict and without.
#[test]
fn dialects_have_no_verdict() {
    for format in [Format::Bcc, Format::Libbpf] {
        assert_eq!(
            rendered(&judged(), format),
            rendered(&full(), format),
            "{format:?}"
        );
    }
}
