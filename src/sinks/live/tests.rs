//! Reports for the tests of the view's parts, and tests of samples.

use std::collections::BTreeMap;
use std::time::Duration;

use unwind_tables::addr::Avma;
use unwind_tables::walk::End;

use super::sample::Sample;
use super::summary;
use leak_report::model::leak::{Change, Completeness};
use leak_report::model::{Amount, Events, InstanceEnd, Losses, Overhead, Sampling};
use leak_report::model::{Compared, Report, Stack, StackRecent, TargetFacts};
use leak_report::samples::{self, frame, stack};

/// A stack of one function, with `bytes` outstanding in blocks of ten bytes, which grew by a tenth of that.
pub(super) fn outstanding_site(function: &str, bytes: u64) -> Stack {
    let amount = |bytes| Amount {
        bytes,
        blocks: bytes.div_ceil(10),
    };
    let grown = Change {
        allocated: amount(bytes / 10).into(),
        freed: Amount::default().into(),
    };
    Stack {
        outstanding: amount(bytes).into(),
        allocated: amount(bytes.saturating_mul(2).max(1)).into(),
        peak: Amount::default(),
        recent: StackRecent {
            since_last: grown,
            since_baseline: grown,
            ..StackRecent::default()
        },
        ..stack(vec![frame("app", function), frame("app", "main")])
    }
}

/// A report of process 4242, one second after the previous.
pub(super) fn report(stacks: Vec<Stack>) -> Report {
    let mut completeness = Completeness::default();
    for stack in &stacks {
        *completeness.stacks.entry(stack.end).or_default() += 1;
        *completeness.allocations.entry(stack.end).or_default() += stack.allocated.amount.blocks;
    }
    Report {
        elapsed: Duration::from_secs(65),
        sampling: Sampling::All,
        compared: Compared {
            older: Some(Duration::from_millis(500)),
            since_last: Duration::from_secs(1),
            since_baseline: Duration::from_secs(20),
            ..Compared::default()
        },
        targets: vec![target(4242, "leaker")],
        stacks,
        events: Events {
            allocations: 12_345,
            frees: 1_000,
            ..Events::default()
        },
        losses: Losses::default(),
        completeness,
        overhead: Some(Overhead {
            lately: 0.021,
            measured: true,
            ..Overhead::default()
        }),
        ..samples::full()
    }
}

pub(super) fn target(pid: u32, comm: &str) -> TargetFacts {
    TargetFacts {
        pid,
        instance: pid,
        parent: None,
        comm: comm.to_owned(),
        exe: None,
        ended: None,
        lack: None,
        fragmentation: None,
        memory: None,
    }
}

/// The sample of a report with these stacks, each given as function and bytes.
pub(super) fn sample(stacks: &[(&str, u64)]) -> Sample {
    let stacks = stacks
        .iter()
        .map(|&(function, bytes)| outstanding_site(function, bytes));
    Sample::of(&report(stacks.collect()))
}

/// A site has the same key in the next report, whatever its amounts and the mapping of its module; another
/// stack, allocator, process or end is another site.
#[test]
fn sites_keep_their_keys() {
    let key = |stack: Stack| Sample::of(&report(vec![stack])).sites[0].key;
    let site = || outstanding_site("grow", 100);
    let moved = outstanding_site("grow", 50);
    let mut frames = samples::frames(&moved);
    frames[0] = samples::changed(frames[0], |frame| frame.at.pc = Avma::new(0x5500_0000_0000));
    let moved = samples::with_frames(moved, frames);
    assert_eq!(key(site()), key(moved));
    let of_other = |stack: Stack| key(stack) != key(site());
    let mut frames = samples::frames(&site());
    frames.pop();
    assert!(of_other(samples::with_frames(site(), frames)));
    assert!(of_other(Stack {
        allocator: samples::allocator("calloc"),
        ..site()
    }));
    assert!(of_other(Stack {
        instance: 2,
        ..site()
    }));
    assert!(of_other(Stack {
        end: End::NoCfi,
        ..site()
    }));
}

/// A sample keeps the first stacks of each order, and counts the others, however many there are.
#[test]
fn samples_are_bounded() {
    let mut stacks: Vec<_> = (0..5000)
        .map(|number| outstanding_site(&format!("f{number}"), 1000))
        .collect();
    let largest = outstanding_site("largest", 1_000_000);
    let many = Stack {
        outstanding: Amount {
            bytes: 900,
            blocks: 900,
        }
        .into(),
        ..outstanding_site("many", 900)
    };
    let busy = Stack {
        outstanding: Amount::default().into(),
        peak: Amount::default(),
        recent: StackRecent::default(),
        verdict: None,
        held: None,
        ..outstanding_site("busy", 90_000_000)
    };
    let mut growing = outstanding_site("growing", 500);
    growing.recent.since_last.allocated = Amount {
        bytes: 400,
        blocks: 1,
    }
    .into();
    stacks.extend([largest, many, busy, growing]);
    let sample = Sample::of(&report(stacks));
    assert!(sample.sites.len() <= 1500, "{}", sample.sites.len());
    assert_eq!(sample.sites.len() as u64 + sample.unlisted, 5004);
    assert_eq!(sample.outstanding_sites, 5003);
    for name in ["largest", "many", "busy", "growing"] {
        assert!(sample.sites.iter().any(|site| site.name == name), "{name}");
    }
}

/// Control characters in names reach neither the terminal nor the line at the end.
#[test]
fn names_are_printable() {
    let mut report = report(vec![outstanding_site("evil\u{1b}[31m\u{202e}", 100)]);
    report.targets[0].comm = "a\u{7}b".to_owned();
    let sample = Sample::of(&report);
    assert_eq!(sample.sites[0].name, "evil\\u{1b}[31m\\u{202e}");
    assert_eq!(sample.subject, "4242 a\\u{7}b");
    assert!(!summary(&sample).chars().any(char::is_control));
}

/// The subject of a report covers several processes, some ended, and all ended.
#[test]
fn subjects() {
    let subject = |pids: &[(u32, bool)]| {
        let mut report = report(Vec::new());
        report.targets = pids
            .iter()
            .map(|&(pid, ended)| TargetFacts {
                ended: ended.then_some(InstanceEnd::Exited),
                ..target(pid, "sh")
            })
            .collect();
        let sample = Sample::of(&report);
        (sample.subject, sample.has_ended)
    };
    let expected = |text: &str, ended| (text.to_owned(), ended);
    assert_eq!(subject(&[(1, false)]), expected("1 sh", false));
    assert_eq!(subject(&[(1, true)]), expected("1 sh", true));
    assert_eq!(
        subject(&[(1, true), (2, false)]),
        expected("2 sh and 1 ended", false)
    );
    assert_eq!(
        subject(&[(1, false), (2, false)]),
        expected("2 processes: 1 sh…", false)
    );
    assert_eq!(
        subject(&[(1, true), (2, true)]),
        expected("2 processes, ended", true)
    );
}

/// Losses of every kind are shown with their causes.
#[test]
fn losses_are_shown_with_causes() {
    let lost = |losses: Losses| {
        let report = Report {
            losses,
            ..report(Vec::new())
        };
        Sample::of(&report).health.lost
    };
    assert_eq!(lost(Losses::default()), None);
    let full = Losses {
        blocks: 12,
        bytes: 3456,
        causes: BTreeMap::from([("block_table_full".into(), 12)]),
        ..Losses::default()
    };
    let text = lost(full).expect("something was lost");
    assert_eq!(text, "12 blocks, 3.3 KiB (block_table_full 12)");
    for losses in [
        Losses {
            frees: 1,
            ..Losses::default()
        },
        Losses {
            events: 1,
            ..Losses::default()
        },
        Losses {
            processes: 1,
            ..Losses::default()
        },
        Losses {
            beginnings: 1,
            ..Losses::default()
        },
        Losses {
            bytes: 1,
            ..Losses::default()
        },
        Losses {
            causes: BTreeMap::from([("x".into(), 1)]),
            ..Losses::default()
        },
    ] {
        assert!(lost(losses.clone()).is_some(), "{losses:?}");
    }
}

/// The summary line has the outstanding amount, the largest site, the completeness of stacks, and losses.
#[test]
fn last_words() {
    insta::assert_snapshot!(summary(&sample(&[("fill()", 20_480), ("keep()", 10)])), @"65.0 s: 20.0 KiB in 2.0 k blocks outstanding at 2 sites, most by fill() (20.0 KiB); all 2 stacks complete, nothing lost");
    insta::assert_snapshot!(summary(&Sample::of(&report(Vec::new()))), @"65.0 s: 0 B in 0 blocks outstanding; no allocation yet, nothing lost");
}
