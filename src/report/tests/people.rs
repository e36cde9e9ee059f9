//! Golden outputs of what only readers need: single blocks, shares, cut stacks.

use super::*;
use crate::collect::{BlockList, ListedBlock, Weight};

fn with_blocks() -> Report {
    let mut report = full();
    let block = |address, size, milliseconds| ListedBlock {
        address: Avma::new(address),
        size,
        age: Duration::from_millis(milliseconds),
        weight: Weight::ONE,
    };
    report.stacks[0].blocks = Some(BlockList {
        listed: vec![
            block(0x55d0_0000_2000, 400, 850),
            block(0x55d0_0000_1000, 80, 12_340),
        ],
        left_out: 10,
    });
    report.stacks[1].blocks = Some(BlockList {
        listed: Vec::new(),
        left_out: 1,
    });
    report
}

/// Blocks stand below what is said of their stack, and what is left out is counted.
#[test]
fn text_of_blocks() {
    let text = rendered(&with_blocks(), Format::Text);
    let expected = concat!(
        "\t480 bytes in 12 allocations from stack\n",
        "\t\t480 B, 92.3% of all outstanding, via malloc\n",
        "\t\taddr = 0x55d000002000 size = 400, 850 ms old\n",
        "\t\taddr = 0x55d000001000 size = 80, 12.3 s old\n",
        "\t\tand 10 more blocks\n",
        "\t\t0x00007f00000ae98c\t",
    );
    assert!(text.contains(expected), "{text}");
    assert!(
        text.contains("\t\t1 block not listed\n\t\t0x00007f0000001234\t"),
        "{text}"
    );
    let with_the_word = text.lines().filter(|line| line.contains("byte"));
    assert_eq!(with_the_word.count(), 2, "{text}");
}

/// The same in JSON, with the weight where blocks stand for others.
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
            {"address": "0x55d000001000", "bytes": 80, "age_ns": 12_340_000_000_u64},
        ], "left_out": 10})
    );
    assert_eq!(found[1]["blocks"], json!({"listed": [], "left_out": 1}));
    assert!(found[2].get("blocks").is_none(), "not asked for");
    report.sampling = Sampling::Calls(2);
    assert_eq!(stacks(&report)[0]["blocks"]["listed"][0]["weight"], 1.0);
}

/// What is not shown is counted, with the flag that shows it; shares are of all.
#[test]
fn text_of_what_is_not_shown() {
    let text = rendered(&Report { top: 1, ..full() }, Format::Text);
    assert!(
        text.contains(
            "  In all:    520 B outstanding in 13 blocks of 2 stacks (1 not shown: -T 2 shows all)\n"
        ),
        "{text}"
    );
    assert!(text.contains("\t\t480 B, 92.3% of all"), "{text}");
}

/// A stack that was cut on demand says so, as does the closing block; other stacks are as they are.
#[test]
fn text_of_cut_stacks() {
    let mut report = Report {
        depth: Some(3),
        ..full()
    };
    report.stacks[1].end = End::DepthLimit;
    let text = rendered(&report, Format::Text);
    let cut = "end: depth_limit at libplugin.so+0x2000 (the stack goes on: --perf-max-stack-depth keeps no more of it)\n";
    assert!(text.contains(cut), "{text}");
    assert!(text.contains("\t\tend: complete\n"), "{text}");
    assert!(
        text.contains("  Depth:     at most 3 frames of a stack, the innermost"),
        "{text}"
    );
    let value: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    assert_eq!(value["max_stack_depth"], 3);
}

/// Where nothing of the paths is left out, nothing is said of it.
#[test]
fn text_of_paths_without_anything_in_common() {
    let mut report = full();
    let frame = report.stacks[0].frames[1].clone();
    report.stacks[0].frames[1].names = Arc::new(Symbolized {
        inlined: Vec::new(),
        ..frame.names.as_ref().clone()
    });
    let text = rendered(&report, Format::Text);
    assert!(text.contains("main+0x31 [leaker] /src/leaker.cpp:30\n"), "{text}");
    assert!(!text.contains("Paths:"), "{text}");
}
