//! Free memory that blocks pin, in formats for people and for programs.

use super::*;
use crate::model::{
    AllocatorMemory, AllocatorName, Amount, Fragmentation, HeldBytes, Losses, Measure, NotMeasured, Order,
    Quantity, Unit,
};
use crate::samples::pinning;

/// Lines of the closing block about what is pinned.
fn lines(report: &Report) -> Vec<String> {
    let text = rendered(report, Format::Text);
    let lines = text.lines().map(str::trim_start);
    lines
        .filter(|line| line.starts_with("pinned: "))
        .map(str::to_owned)
        .collect()
}

/// A stack has a line on what its blocks pin; the closing block, how much is free, what a call would give
/// back, and what blocks without a stack pin.
#[test]
fn text_of_pinned() {
    let report = pinning();
    let text = rendered(&report, Format::Text);
    assert!(text.contains("\n   480 B in 12 blocks pin 40.0 KiB\n"), "{text}");
    assert_eq!(text.matches(" pin ").count(), 1, "{text}");
    assert_eq!(
        lines(&report),
        [
            "pinned: free in the allocator: 105.0 KiB, of it pinned by blocks 60.0 KiB; `malloc_trim(0)` would \
             return 24.0 KiB",
            // Of the other 8 KiB it is not known whether their blocks were allocated before the attach.
            "pinned: 20.0 KiB pinned by blocks from before the attach, or that were not recorded",
        ]
    );
    let verbose = verbose(&report);
    assert!(
        verbose.contains("  Pinned:    free in the allocator: 105.0 KiB, of it"),
        "{verbose}"
    );
    assert!(text.contains("      PINS "), "{text}");
    assert!(!rendered(&full(), Format::Text).contains("PINS"));
}

/// Where only some blocks of a stack pin, their number is told; of estimates, also the error.
#[test]
fn text_of_some_and_of_estimates() {
    let mut report = pinning();
    let few = Amount {
        bytes: 4096,
        blocks: 1,
    };
    report.stacks[0].pinned = Some(few.into());
    report.losses = Losses::default();
    let text = rendered(&report, Format::Text);
    assert!(text.contains("\n   1 of 12 blocks pins 4.0 KiB\n"), "{text}");
    assert!(lines(&report)[1].ends_with("56.0 KiB pinned by blocks from before the attach"));
    report.sampling = Sampling::Bytes(4096);
    if let Some(pinned) = &mut report.stacks[0].pinned {
        pinned.spread.bytes = 2048 * 2048;
        pinned.spread.recorded = 1;
    }
    let text = rendered(&report, Format::Text);
    assert!(
        text.contains(
            "   about 1 of 12 blocks pins 4.0 KiB, ± 2.0 KiB (2048 B) and 0 blocks (standard error;"
        ),
        "{text}"
    );
    assert!(lines(&report)[1].starts_with("pinned: about 56.0 KiB"));
}

/// Each allocator has its own call, and musl has none. Of processes whose memory is not known, a note says
/// why, and there is no number.
#[test]
fn text_by_allocator_and_of_the_unknown() {
    let mut report = pinning();
    let memory = |allocator, free| AllocatorMemory {
        allocator,
        held: HeldBytes {
            held: free,
            whole: free,
            trimmable: free / 2,
            ..HeldBytes::default()
        },
    };
    let mut only = |all: &[AllocatorMemory]| {
        report.targets[0].fragmentation = Some(Fragmentation::Known(all.to_vec()));
        lines(&report)[0].clone()
    };
    assert_eq!(
        only(&[memory(AllocatorName::Musl, 4096)]),
        "pinned: free in the allocator: 4.0 KiB, of it pinned by blocks 0 B"
    );
    let both = only(&[
        memory(AllocatorName::Glibc, 0),
        memory(AllocatorName::Jemalloc, 8192),
    ]);
    assert!(
        both.ends_with("blocks 0 B; `mallctl(\"arena.<i>.purge\")` would return 4.0 KiB"),
        "{both}"
    );
    let other = report.targets[0].clone();
    report.targets = NotMeasured::ALL
        .map(|reason| crate::model::TargetFacts {
            fragmentation: Some(Fragmentation::Unknown(reason)),
            ..other.clone()
        })
        .into();
    report.targets.push(report.targets[2].clone());
    report.stacks.iter_mut().for_each(|stack| stack.pinned = None);
    assert_eq!(
        lines(&report),
        [
            "pinned: not known of process 4242: no allocator whose structures are known (glibc, musl, jemalloc, \
             tcmalloc, mimalloc)",
            "pinned: not known of process 4242: the memory could not be read",
            "pinned: not known of 2 processes: ended before the report was made",
        ]
    );
    let found: Value = serde_json::from_str(&rendered(&report, Format::Json)).unwrap();
    assert_eq!(
        found["targets"][0]["fragmentation"],
        serde_json::json!({"unknown_because": "no_known_allocator"})
    );
    assert!(found["stacks"][0].get("pinned").is_none());
}

/// In JSON, each stack has what it pins, and each process how its allocators use their memory; without the
/// question there is neither.
#[test]
fn json_of_pinned() {
    let json = |report: &Report| -> Value { serde_json::from_str(&rendered(report, Format::Json)).unwrap() };
    let found = json(&pinning());
    assert_eq!(
        found["stacks"][0]["pinned"],
        serde_json::json!({"bytes": 40960, "blocks": 12})
    );
    let of_process = &found["targets"][0]["fragmentation"];
    let parts = ["blocks", "cached", "own", "unknown", "between", "whole"];
    let sum: u64 = parts.iter().filter_map(|part| of_process[part].as_u64()).sum();
    assert_eq!(of_process["held"], sum);
    assert_eq!(of_process["pinned"], 61 << 10);
    assert_eq!(of_process["pinned_by_others"], 20 << 10);
    assert_eq!(of_process["allocators"][0]["name"], "glibc");
    assert_eq!(of_process["allocators"][0]["trimmed_by"], "malloc_trim(0)");
    let without = json(&full());
    assert!(without["targets"][0].get("fragmentation").is_none());
    assert!(without["stacks"][0].get("pinned").is_none());
}

/// Stacks can be ranked by what their blocks pin, and those without old blocks are shown, too, if they pin.
#[test]
fn order_of_pinned() {
    let mut report = pinning();
    let pinned = |bytes| Some(Amount { bytes, blocks: 1 }.into());
    report.stacks[1].pinned = pinned(50 << 10);
    report.stacks[2].pinned = pinned(45 << 10);
    report.sort(Some(Order::Pinned));
    let bytes: Vec<_> = report
        .ranked()
        .iter()
        .map(|stack| stack.pins().amount.bytes)
        .collect();
    assert_eq!(bytes, [50 << 10, 45 << 10, 40 << 10]);
    report.sort(Some(Order::Size));
    assert_eq!(report.ranked().len(), 2);
}

/// Flame graphs can show what blocks pin; speedscope and pprof have it if it is known.
#[test]
fn graphs_of_pinned() {
    let mut report = pinning();
    for (unit, expected) in [(Unit::Bytes, 40 << 10), (Unit::Blocks, 12)] {
        report.quantity = Quantity {
            measure: Measure::Pinned,
            unit,
        };
        let folded = rendered(&report, Format::Folded);
        let numbers = folded
            .lines()
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        assert_eq!(numbers.sum::<u64>(), expected, "{folded}");
    }
    let names = |report: &Report| -> Vec<String> {
        let file: Value = serde_json::from_str(&rendered(report, Format::Speedscope)).unwrap();
        let profiles = file["profiles"].as_array().unwrap();
        let names = profiles.iter().filter_map(|profile| profile["name"].as_str());
        names.map(str::to_owned).collect()
    };
    report.quantity = Quantity::default();
    assert!(names(&report).contains(&"Free bytes that blocks pin".to_owned()));
    assert!(!names(&full()).contains(&"Free bytes that blocks pin".to_owned()));
}
