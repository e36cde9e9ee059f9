//! Golden outputs of details for people: single blocks, shares, cut stacks.

use super::*;
use crate::model::{Amount, BlockList, ListedBlock, Sampling, Stack, Symbolized, TextKind, Weight};
use crate::model::{InstanceEnd, Measured, MemoryLack, Reached, Reason};
use crate::samples;
use std::time::Duration;
use unwind_tables::addr::Avma;
use unwind_tables::walk::End;

fn with_blocks() -> Report {
    let class = samples::text_of(TextKind::Class, "app::Entry\n");
    let mut report = full();
    let block = |address, size, milliseconds| ListedBlock {
        address: Avma::new(address),
        size,
        age: Duration::from_millis(milliseconds),
        weight: Weight::ONE,
        class: None,
    };
    let of_class = ListedBlock {
        class: Some(class),
        ..block(0x55d0_0000_1000, 80, 12_340)
    };
    report.stacks[0].blocks = Some(BlockList {
        listed: vec![block(0x55d0_0000_2000, 400, 850), of_class],
        left_out: 10,
    });
    report.stacks[1].blocks = Some(BlockList {
        listed: Vec::new(),
        left_out: 1,
    });
    report
}

/// Text for people says below its first line why the report was made; a hostile condition of a recording
/// cannot add lines.
#[test]
fn text_of_reasons() {
    let condition = "rss>1MiB\n\u{1b}[2J".to_owned();
    let reached = Reached {
        condition,
        value: Measured::Bytes(3 << 19),
        pid: Some(7),
    };
    let mut report = full();
    for (reason, expected) in [
        (
            Reason::Conditions(vec![reached]),
            "\n  Reported because rss>1MiB\\n\\u{1b}[2J: 1.5 MiB in process 7\n",
        ),
        (Reason::End, "\n  Reported because the trace ended\n"),
    ] {
        report.reason = Some(reason);
        for format in [Format::Text, Format::Summary] {
            let text = rendered(&report, format);
            assert!(text.contains(expected), "{text}");
        }
    }
    report.reason = None;
    assert!(!rendered(&report, Format::Text).contains("Reported"));
}

/// Text for people lists below its first line the processes that were killed for lack of memory: the first
/// five of many.
#[test]
fn text_of_kills() {
    let mut report = full();
    report.targets[0].ended = Some(InstanceEnd::OutOfMemory);
    report.targets[0].lack = Some(MemoryLack::System);
    let line = "The kernel killed leaker (4242) for lack of memory: the system's memory was short";
    let text = rendered(&report, Format::Text);
    assert!(
        text.contains("leaker (4242, killed for lack of memory), 12.3 s: "),
        "{text}"
    );
    assert!(text.lines().nth(1) == Some(&format!("  {line}")), "{text}");
    report.targets = vec![report.targets[0].clone(); 7];
    let text = rendered(&report, Format::Summary);
    assert_eq!(text.matches("The kernel killed leaker").count(), 5, "{text}");
    assert!(
        text.contains("\n  And 2 more processes killed for lack of memory\n"),
        "{text}"
    );
}

/// Blocks are listed below the facts on their stack, and those omitted are counted.
#[test]
fn text_of_blocks() {
    let text = rendered(&with_blocks(), Format::Text);
    let expected = concat!(
        "LeakLib::slowMemoryLeak(): 480 B in 12 blocks, 92.3% of all, via malloc\n",
        "   sizes: 8 B (8.3%), 40 B to 48 B (91.6%), by threads worker (98.3%), leaker (1.6%)\n",
        "   12 blocks freed: 8.3% before the thread's next allocation, 91.6% within 1 s\n",
        "   addr = 0x55d000002000 size = 400, 850 ms old\n",
        "   addr = 0x55d000001000 size = 80, 12.3 s old, class app::Entry\\n\n",
        "   and 10 more blocks\n",
        "      operator new(unsigned long)",
    );
    assert!(text.contains(expected), "{text}");
    assert!(
        text.contains("\n   1 block not listed\n    > libplugin.so+0x1234"),
        "{text}"
    );
}

/// JSON lists the blocks, with a weight if they are sampled, and with their classes.
#[test]
fn json_of_blocks() {
    let mut report = with_blocks();
    let stacks = |report: &Report| -> Value {
        let value: Value = serde_json::from_str(&rendered(report, Format::Json)).unwrap();
        value["stacks"].clone()
    };
    let found = stacks(&report);
    assert_eq!(
        found[0]["blocks"],
        json!({"listed": [
            {"address": "0x55d000002000", "bytes": 400, "age_ns": 850_000_000},
            {"address": "0x55d000001000", "bytes": 80, "age_ns": 12_340_000_000_u64, "class": "app::Entry\n"},
        ], "left_out": 10})
    );
    assert_eq!(found[1]["blocks"], json!({"listed": [], "left_out": 1}));
    assert!(found[2].get("blocks").is_none(), "not asked for");
    report.sampling = Sampling::Calls(2);
    assert_eq!(stacks(&report)[0]["blocks"]["listed"][0]["weight"], 1.0);
}

/// The verbose report, too, counts the stacks not shown, with the flag that shows them.
#[test]
fn text_counts_hidden_stacks() {
    let text = verbose(&Report { top: 1, ..full() });
    assert!(
        text.contains(
            "  In all:    520 B outstanding in 13 blocks of 2 stacks (1 not shown: -T 2 shows all)\n"
        ),
        "{text}"
    );
}

/// Text that was written once is not repeated until the last report, which has all of it; a new site has its
/// stack at once.
#[test]
fn text_of_several_reports() {
    let mut people = People::default();
    let mut write = |report: &Report, is_last| {
        let mut out = Vec::new();
        people.write(report, is_last, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let mut first = full();
    let later = first.stacks.remove(0);
    let stacks = |text: &str| text.matches("      end: ").count();
    let text = write(&first, false);
    assert_eq!(stacks(&text), 1, "{text}");
    assert!(
        text.contains("(-v: ") && text.contains("lost: 9 blocks"),
        "{text}"
    );
    let text = write(&first, false);
    assert_eq!(stacks(&text), 0, "{text}");
    assert!(
        text.contains(" libplugin.so+0x1234\n") && !text.contains("lost: "),
        "{text}"
    );
    first.stacks.insert(0, later);
    let text = write(&first, false);
    assert!(
        text.contains("LeakLib::slowMemoryLeak(): ") && stacks(&text) == 1,
        "{text}"
    );
    let text = write(&first, true);
    assert_eq!(stacks(&text), 2, "{text}");
    assert!(text.contains("lost: 9 blocks"), "{text}");
}

/// No line is wider than the terminal, whatever the names, and titles remain visible.
#[test]
fn text_fits_its_terminal() {
    let mut report = full();
    let long = format!("app::{}", "a_rather_long_name::".repeat(30));
    samples::change_frames(&mut report, 1, |frames| {
        frames[0] = samples::renamed(frames[0], &named(&long, 4));
    });
    for width in [40, 60, 80, 160] {
        let screen = Screen {
            width: Some(width),
            is_verbose: false,
        };
        let mut out = Vec::new();
        People::new(screen).write(&report, true, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in text.lines() {
            assert!(crate::render::cells::width(line) <= width, "{width}: {line}");
        }
        assert!(text.contains("LeakLib"), "{width}: {text}");
    }
}

/// Nameless frames of a runtime are one line, and so are the standard library's inlined functions except the
/// outermost; the verbose report has a line for each.
#[test]
fn text_of_folded_frames() {
    let mut frames = vec![
        samples::inlined(
            "app",
            "Cache::put()",
            &["std::a()", "std::b()", "std::c()", "Cache::grow()"],
        ),
        samples::frame("libstdc++.so.6", "f"),
        samples::frame("libstdc++.so.6", "g"),
        samples::frame("libother.so", "main"),
    ];
    for frame in &mut frames[1..3] {
        *frame = samples::renamed(*frame, &Symbolized::default());
    }
    let stack = samples::stack(frames);
    let report = report(vec![Stack {
        outstanding: Amount { bytes: 8, blocks: 1 }.into(),
        ..stack
    }]);
    let text = rendered(&report, Format::Text);
    for expected in [
        "      (2 inlined functions of the standard library)\n      std::c() (inlined) [app]",
        "    > Cache::grow() (inlined) [app]",
        "      (2 frames without names [libstdc++.so.6])\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let text = verbose(&report);
    assert!(
        text.contains("std::a() (inlined)") && !text.contains(" without names"),
        "{text}"
    );
}

/// A stack cut on request has a note, as has the closing block; other stacks are unchanged.
#[test]
fn text_of_cut_stacks() {
    let mut report = Report {
        depth: Some(3),
        ..full()
    };
    report.stacks[1].end = End::DepthLimit;
    let text = rendered(&report, Format::Text);
    let cut = "end: depth_limit at libplugin.so+0x2000 (cut by --perf-max-stack-depth)\n";
    assert!(text.contains(cut), "{text}");
    assert!(text.contains("\n      end: complete\n"), "{text}");
    assert!(text.contains("\n  innermost 3 frames of each stack"), "{text}");
    let value: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    assert_eq!(value["max_stack_depth"], 3);
}

/// If no directory is abbreviated, there is no explanation of the mark.
#[test]
fn text_of_paths_without_anything_in_common() {
    let mut report = full();
    let names = Symbolized {
        file: Some("/src/leaker.cpp".into()),
        line: Some(30),
        ..named("main", 0x31)
    };
    samples::change_frames(&mut report, 0, |frames| {
        frames[1] = samples::renamed(frames[1], &names)
    });
    let text = rendered(&report, Format::Text);
    assert!(text.contains("main [leaker] /src/leaker.cpp:30\n"), "{text}");
    assert!(!text.contains("…/"), "{text}");
}
