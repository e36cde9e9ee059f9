//! Golden outputs of ages and changes, in each format.

use super::*;
use crate::model::leak::Change;
use crate::model::{Ages, Amount, Compared, Estimate, StackRecent, TimeOfDay};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn amount(bytes: u64, blocks: u64) -> Estimate {
    Amount { bytes, blocks }.into()
}

/// The JSON of a change: bytes and blocks allocated, bytes and blocks freed.
pub(super) fn change_json([bytes, blocks, freed_bytes, freed_blocks]: [u64; 4]) -> Value {
    let net = |more: u64, less: u64| i128::from(more) - i128::from(less);
    json!({
        "allocated": {"bytes": bytes, "blocks": blocks}, "freed": {"bytes": freed_bytes, "blocks": freed_blocks},
        "net_bytes": i64::try_from(net(bytes, freed_bytes)).unwrap(),
        "net_blocks": i64::try_from(net(blocks, freed_blocks)).unwrap(),
    })
}

/// The second report after a mark: a stack that grows and is partly young, one that shrinks and is all young,
/// and one without changes.
fn second() -> Report {
    let mut report = full();
    report.compared = Compared {
        older: Some(SECOND / 2),
        first: false,
        since_last: 5 * SECOND,
        since_baseline: 60 * SECOND,
        marked: Some(TimeOfDay {
            hour: 12,
            minute: 3,
            second: 4,
        }),
    };
    let recent = |young, ages: &[(Duration, Estimate)], since_last, since_baseline| {
        let mut histogram = Ages::default();
        ages.iter()
            .for_each(|&(age, amount)| histogram.count(age, amount));
        StackRecent {
            young: Some(young),
            ages: Some(histogram),
            since_last,
            since_baseline,
            suspicion: None,
        }
    };
    let grown = Change {
        allocated: amount(61_500, 615),
        freed: amount(0, 0),
    };
    let shrunk = Change {
        allocated: amount(40, 1),
        freed: amount(80, 2),
    };
    report.stacks[0].recent = recent(
        amount(80, 2),
        &[(SECOND / 4, amount(80, 2)), (7200 * SECOND, amount(400, 10))],
        grown,
        Change {
            allocated: amount(61_540, 616),
            ..grown
        },
    );
    report.stacks[1].recent = recent(
        amount(40, 1),
        &[(SECOND / 100, amount(40, 1))],
        shrunk,
        Change::default(),
    );
    report.stacks[2].recent = recent(Estimate::default(), &[], Change::default(), Change::default());
    report
}

/// Amounts are those of old blocks, stacks without any are omitted, and each stack has its changes on lines
/// of its own; the closing block has the amount hidden.
#[test]
fn text_of_ages_and_changes() {
    let text = rendered(&second(), Format::Text);
    for expected in [
        "400 B outstanding in 10 blocks at 1 site\n",
        "     400 B     10   +12.0 KiB/s 50.0%    >1h   LeakLib::slowMemoryLeak leaklib.h:12\n",
        "\n   +12.0 KiB/s since the last report (+61500 B: 615 allocated, 0 freed)\n",
        "\n   +1.0 KiB/s since 12:03:04 (marked) (+61540 B: 616 allocated, 0 freed)\n",
        "\n  not shown: 120 B in 3 blocks younger than 500 ms (-o 0 shows them)\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let verbose = verbose(&second());
    let lines: Vec<_> = verbose
        .lines()
        .filter(|line| line.contains("Young:") || line.contains("Ages:"))
        .collect();
    assert_eq!(
        lines,
        [
            "  Young:     3 blocks, 120 B, younger than 500 ms: hidden above (-o 0 shows all)",
            "  Ages:      <100 ms 1 block (40 B), <1 s 2 blocks (80 B), older than 1 h 10 blocks (400 B)",
        ]
    );
}

/// Changes in the first report are since the attach.
#[test]
fn text_of_the_first_changes() {
    let mut report = second();
    report.compared.first = true;
    report.compared.marked = None;
    report.stacks[1].recent.young = Some(Estimate::default());
    let text = rendered(&report, Format::Text);
    for expected in [
        "\n   +12.0 KiB/s since the attach (+61500 B: 615 allocated, 0 freed)\n",
        "\n   -8.0 B/s since the attach (-40 B: 1 allocated, 2 freed)\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// JSON has ages and changes: a stack's classes without the empty ones, those of the whole report with them.
#[test]
fn json_of_ages_and_changes() {
    let value: Value = serde_json::from_str(&rendered(&second(), Format::Json)).unwrap();
    assert_eq!(value["older_than_ns"], 500_000_000);
    assert_eq!(value["since_last"], json!({"duration_ns": 5_000_000_000_u64}));
    assert_eq!(
        value["since_baseline"],
        json!({"duration_ns": 60_000_000_000_u64, "marked": "12:03:04"})
    );
    let class = |up_to: Option<u64>, bytes: u64, blocks: u64| json!({"up_to_ns": up_to, "bytes": bytes, "blocks": blocks});
    let nanoseconds = |seconds: u64| Some(seconds * 1_000_000_000);
    assert_eq!(
        value["ages"],
        json!([
            class(Some(100_000_000), 40, 1),
            class(nanoseconds(1), 80, 2),
            class(nanoseconds(10), 0, 0),
            class(nanoseconds(60), 0, 0),
            class(nanoseconds(600), 0, 0),
            class(nanoseconds(3600), 0, 0),
            class(None, 400, 10),
        ])
    );
    let stack = &value["stacks"][0];
    assert_eq!(stack["outstanding"], json!({"bytes": 480, "blocks": 12}));
    assert_eq!(stack["young"], json!({"bytes": 80, "blocks": 2}));
    assert_eq!(
        stack["ages"],
        json!([class(nanoseconds(1), 80, 2), class(None, 400, 10)])
    );
    assert_eq!(stack["since_last"], change_json([61_500, 615, 0, 0]));
    assert_eq!(stack["since_baseline"], change_json([61_540, 616, 0, 0]));
    assert_eq!(value["stacks"][1]["since_last"], change_json([40, 1, 80, 2]));
    assert_eq!(value["stacks"][2]["ages"], json!([]));
}
