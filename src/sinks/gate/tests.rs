//! Checks hand-made reports against conditions, suppressions and baselines.

mod fixture;
mod suppressed;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use unwind_tables::walk::End;

use super::*;
use fixture::{frame, framed, judged, report, stack, target};
use leak_report::model::site_name::SiteNamer;
use leak_report::model::{InstanceEnd, Losses, Spread, Unjudged};

fn settings(conditions: &[&str]) -> Settings {
    let conditions = conditions.iter().map(|text| parse(text).expect("a condition"));
    Settings {
        conditions: conditions.collect(),
        ..Settings::default()
    }
}

/// Results of the conditions after these reports: `.` passed, `!` exceeded, `?` inconclusive; and the
/// findings.
fn findings(settings: &Settings, reports: Vec<Report>) -> (String, Vec<Finding>) {
    let mut gate = Gate::open(settings).expect("nothing to open");
    for report in reports {
        gate.check(&Arc::new(report));
    }
    let last = gate.last.take();
    let findings = last.map_or_else(Vec::new, |last| gate.findings(&last.facts));
    let sign = |finding: &Finding| match finding.outcome {
        Outcome::Passed => '.',
        Outcome::Exceeded => '!',
        Outcome::Inconclusive(_) => '?',
    };
    (findings.iter().map(sign).collect(), findings)
}

#[track_caller]
fn check(conditions: &[&str], report: Report, expected: &str) -> Vec<Finding> {
    let (signs, findings) = findings(&settings(conditions), vec![report]);
    assert_eq!(signs, expected, "{findings:#?}");
    findings
}

const ALL: [&str; 8] = [
    "outstanding>500",
    "outstanding>=521",
    "blocks>12",
    "blocks>=14",
    "site.outstanding>=480",
    "site.outstanding>480",
    "site.blocks>12",
    "site.blocks>11",
];

/// Amounts sum everything that counts; sites of the same names are one, in any process.
#[test]
fn amounts() {
    let two = || {
        let mut child = stack(&["grow", "handle", "main"], 80, 2);
        child.pid = 7;
        report(vec![
            stack(&["grow", "handle", "main"], 400, 10),
            stack(&["init", "main"], 40, 1),
            child,
        ])
    };
    let findings = check(&ALL, two(), "!.!.!..!");
    assert_eq!(findings[0].found, "520 B in 13 blocks at 2 sites");
    let culprits: Vec<_> = findings[0]
        .culprits
        .iter()
        .map(|culprit| (&*culprit.amount, &*culprit.site))
        .collect();
    assert_eq!(
        culprits,
        [
            ("480 B in 12 blocks", "grow < handle < main"),
            ("40 B in 1 block", "init < main")
        ]
    );
    let mut allocated = two();
    allocated.stacks[1].allocated.amount.bytes = 1 << 20;
    let conditions = [
        "allocated>1MiB",
        "allocated>2MiB",
        "allocations>=13",
        "allocations>13",
    ];
    let findings = check(&conditions, allocated, "!.!.");
    assert_eq!(findings[0].culprits[0].site, "init < main");
}

/// Young blocks, memory at an exec, and mappings that are not leaks do not count; memory at a program's end
/// does.
#[test]
fn counted_blocks_and_mappings() {
    let with = |change: fn(&mut Stack)| {
        let mut changed = stack(&["f"], 100, 1);
        change(&mut changed);
        report(vec![changed])
    };
    type Stack = leak_report::model::Stack;
    let young = |stack: &mut Stack| stack.recent.young = Some(stack.outstanding);
    for (change, expected) in [
        ((|_| {}) as fn(&mut Stack), "!"),
        (young, "."),
        (|stack| stack.ended = Some(InstanceEnd::Exited), "!"),
        (|stack| stack.ended = Some(InstanceEnd::Execed), "."),
        (
            |stack| stack.kind = Some(leak_report::model::RegionKind::Anonymous),
            "!",
        ),
        (
            |stack| stack.kind = Some(leak_report::model::RegionKind::ThreadStack),
            ".",
        ),
    ] {
        check(&["outstanding>0"], with(change), expected);
    }
}

/// Lost blocks are measured by the verdict, young or not and whatever the baseline accepts; the sites with
/// most lost blocks are named.
#[test]
fn verdicts() {
    let conditions = [
        "definitely_lost>0",
        "definitely_lost>=481",
        "definitely_lost.blocks>12",
        "site.definitely_lost>399",
        "site.definitely_lost.blocks>10",
        "indirectly_lost>0",
        "indirectly_lost.blocks>2",
        "outstanding>1000",
    ];
    let findings = check(&conditions, judged(), "!..!.!..");
    assert_eq!(findings[0].found, "480 B in 12 blocks definitely lost at 2 sites");
    let culprits = findings[0]
        .culprits
        .iter()
        .map(|culprit| (&*culprit.amount, &*culprit.site));
    assert_eq!(
        culprits.collect::<Vec<_>>(),
        [
            ("400 B in 10 blocks definitely lost", "grow < main"),
            ("80 B in 2 blocks definitely lost", "init < main")
        ]
    );
    assert_eq!(findings[5].culprits[0].site, "init < main");
}

/// Without a verdict, conditions about it are inconclusive, and name the flag.
#[test]
fn conditions_without_a_verdict() {
    let conditions = [
        "definitely_lost>0",
        "site.definitely_lost>0",
        "indirectly_lost>0",
        "outstanding>0",
    ];
    let findings = check(&conditions, report(vec![stack(&["f"], 100, 1)]), "???!");
    let Outcome::Inconclusive(reason) = &findings[0].outcome else {
        panic!("{findings:?}");
    };
    assert!(
        reason.contains("--verdict") && findings[0].found.is_empty(),
        "{reason}"
    );
}

/// A verdict that was false makes every condition on lost blocks inconclusive. Blocks that could not be
/// judged make those inconclusive that would pass, unless the blocks only came or went meanwhile, or an exec
/// discarded them.
#[test]
fn doubtful_verdicts() {
    let conditions = ["definitely_lost>0", "definitely_lost>480", "outstanding>0"];
    let with = |change: fn(&mut Report)| {
        let mut report = judged();
        change(&mut report);
        report
    };
    let one = Amount { bytes: 1, blocks: 1 };
    type Judgement = leak_report::model::Judgement;
    fn judgement(report: &mut Report) -> &mut Judgement {
        report.judgement.as_mut().expect("a verdict")
    }
    let ended = |report: &mut Report, end| {
        report.stacks[0].ended = Some(end);
        report.stacks[0].verdict = Some(leak_report::model::Verdict {
            unknown: Amount {
                bytes: 480,
                blocks: 12,
            },
            ..Default::default()
        });
    };
    let mut false_verdict = judged();
    judgement(&mut false_verdict).freed_later = one;
    let findings = check(&conditions, false_verdict, "??!");
    let Outcome::Inconclusive(reason) = &findings[0].outcome else {
        panic!("{findings:?}");
    };
    assert_eq!(
        reason,
        "1 block that an earlier verdict called lost was freed since: a verdict of this trace was false"
    );
    for (reason, expected) in [
        (Unjudged::Young, "!.!"),
        (Unjudged::NotSettled, "!?!"),
        (Unjudged::Unreadable, "!?!"),
        // Counted at the stacks of ended instances.
        (Unjudged::Ended, "!.!"),
    ] {
        let mut report = with(|_| {});
        judgement(&mut report).unjudged.insert(reason, one);
        check(&conditions, report, expected);
    }
    for (end, expected) in [(InstanceEnd::Exited, "!?!"), (InstanceEnd::Execed, "!.!")] {
        let mut report = judged();
        ended(&mut report, end);
        check(&conditions, report, expected);
    }
}

/// Lost allocations make passed conditions inconclusive, and missed frees exceeded ones; `--max-lost` allows
/// losses, and `lost` limits them.
#[test]
fn losses() {
    let lossy = |blocks, bytes, frees, processes| {
        let mut report = report(vec![stack(&["f"], 100, 1)]);
        report.events.allocations = 1000;
        report.events.frees = 999;
        report.losses = Losses {
            blocks,
            bytes,
            frees,
            processes,
            ..Losses::default()
        };
        report
    };
    let conditions = ["outstanding>0", "outstanding>100", "lost>1%", "allocations>0"];
    for (report, expected) in [
        (lossy(0, 0, 0, 0), "!..!"),
        (lossy(1, 0, 0, 0), "!..!"),
        (lossy(2, 0, 0, 0), "!?.!"),
        (lossy(11, 0, 0, 0), "!?!!"),
        // One lost block, as large as all others together.
        (lossy(1, 100, 0, 0), "!?!!"),
        (lossy(0, 0, 0, 1), "!?.!"),
        (lossy(0, 0, 2, 0), "?..!"),
    ] {
        check(&conditions, report, expected);
    }
    let allowed = Settings {
        max_lost: MaxLost::parse("2").expect("a share"),
        ..settings(&conditions)
    };
    assert_eq!(findings(&allowed, vec![lossy(11, 0, 11, 0)]).0, "!.!!");
    let strict = Settings {
        max_lost: MaxLost::parse("0").expect("a share"),
        ..settings(&conditions)
    };
    assert_eq!(findings(&strict, vec![lossy(1, 0, 0, 0)]).0, "!?.!");
}

/// Without any allocation, every condition is inconclusive.
#[test]
fn nothing_seen() {
    let mut nothing = report(Vec::new());
    nothing.events.allocations = 0;
    let findings = check(&["outstanding>0", "lost>0%", "incomplete>0%"], nothing, "???");
    let reason = Outcome::Inconclusive("no allocation was seen, so nothing can be decided".to_owned());
    assert_eq!(findings[0].outcome, reason);
    assert_eq!(findings_of_no_report(), None);
}

fn findings_of_no_report() -> Option<u8> {
    let settings = settings(&["outstanding>0"]);
    let gate = Gate::open(&settings).expect("nothing to open");
    gate.finish(0).expect("nothing to write")
}

/// Incomplete stacks are measured as a share of allocations.
#[test]
fn incomplete_stacks() {
    let mut cut = report(Vec::new());
    cut.completeness.allocations =
        BTreeMap::from([(End::Complete, 995), (End::NoCfi, 3), (End::ReadFault, 2)]);
    let findings = check(&["incomplete>=0.5%", "incomplete>0.5%"], cut, "!.");
    assert_eq!(
        findings[0].found,
        "0.5% of allocations (5 of 1000) have no complete stack"
    );
}

/// An estimate decides a condition if it differs from the limit by two standard errors; otherwise the
/// condition is inconclusive.
#[test]
fn estimates() {
    let mut estimated = report(vec![stack(&["f"], 1000, 10)]);
    estimated.sampling = Sampling::Bytes(4096);
    estimated.stacks[0].outstanding.spread = Spread {
        recorded: 5,
        bytes: 100 * 100,
        blocks: 1 << 32,
    };
    let conditions = [
        "outstanding>799",
        "outstanding>801",
        "outstanding>1199",
        "outstanding>1201",
        "blocks>7",
        "blocks>9",
        "blocks>12",
        "site.outstanding>1100",
    ];
    let findings = check(&conditions, estimated, "!??.!?.?");
    assert!(
        findings[0]
            .found
            .contains("(± 100 B and 1 blocks, standard error)"),
        "{findings:#?}"
    );
}

/// A report after `seconds`, of a running process.
fn later(seconds: u64, stacks: Vec<leak_report::model::Stack>) -> Report {
    Report {
        elapsed: Duration::from_secs(seconds),
        ..report(stacks)
    }
}

/// Growth is measured while processes run, since the mark if there is one.
#[test]
fn growth() {
    let conditions = [
        "growth>=60/min",
        "growth>60/min",
        "site.growth>=120/min",
        "site.growth>2/s",
    ];
    let settings = settings(&conditions);
    let growing = |seconds: u64| {
        let mut ended = stack(&["child"], 1000 * seconds, 1);
        ended.ended = Some(InstanceEnd::Exited);
        let stacks = vec![
            stack(&["grow"], 100 + 2 * seconds, 1),
            stack(&["shrink"], 100 - seconds, 1),
            ended,
        ];
        later(seconds, stacks)
    };
    let (signs, found) = findings(&settings, (1..=2).map(growing).collect());
    assert_eq!(signs, "????", "{found:#?}");
    let Outcome::Inconclusive(reason) = &found[0].outcome else {
        panic!("{found:#?}")
    };
    assert!(
        reason.starts_with("2 reports were made") && reason.contains("INTERVAL"),
        "{reason}"
    );
    let ended = |mut report: Report| {
        report.targets[0].ended = Some(InstanceEnd::Exited);
        report
    };
    let reports = vec![growing(1), growing(2), ended(growing(3))];
    let (signs, found) = findings(&settings, reports);
    assert_eq!(signs, "....", "{found:#?}");
    assert!(
        found[0].is_untried && found[0].found.starts_with("too short to tell"),
        "{found:#?}"
    );
    let (signs, found) = findings(&settings, (1..=4).map(growing).collect());
    assert_eq!(signs, "!.!.", "{found:#?}");
    assert_eq!(found[0].found, "+60.0 B/min over 3 reports in 2.0 s");
    assert_eq!(
        (&*found[2].culprits[0].amount, &*found[2].culprits[0].site),
        ("+120.0 B/min", "grow")
    );
    assert_eq!(found[2].culprits.len(), 1);

    // The last report after a program's end shows what it left, not how it grew.
    let at_end = ended(later(9, vec![stack(&["grow"], 1 << 20, 1)]));
    let reports = (1..=4).map(growing).chain([at_end]).collect();
    assert_eq!(findings(&settings, reports).0, "!.!.");

    let marked = |seconds| {
        let mut report = growing(seconds);
        report.compared.marked = Some(leak_report::model::TimeOfDay::default());
        report.compared.since_baseline = Duration::from_secs(seconds - 3);
        report
    };
    let warming = |seconds| later(seconds, vec![stack(&["grow"], 1_000_000 * seconds, 1)]);
    let reports = (1..=3).map(warming).chain((4..=6).map(marked)).collect();
    assert_eq!(findings(&settings, reports).0, "!.!.");
}

/// Memory within a baseline does not count; memory beyond it and new sites do.
#[test]
fn baselines() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("leaks.txt");
    let stacks = || {
        vec![
            stack(&["old", "main"], 400, 10),
            stack(&["cache", "main"], 100, 5),
        ]
    };
    let writing = Settings {
        write_baseline: Some(path.clone()),
        ..Settings::default()
    };
    let mut gate = Gate::open(&writing).expect("a new file");
    gate.check(&Arc::new(report(stacks())));
    assert_eq!(gate.finish(0).expect("it is written"), None);
    let against = |stacks| {
        let settings = Settings {
            baseline: Some(path.clone()),
            ..settings(&["outstanding>0", "blocks>0", "site.outstanding>50"])
        };
        findings(&settings, vec![report(stacks)])
    };
    assert_eq!(against(stacks()).0, "...");
    assert_eq!(against(vec![stack(&["old", "main"], 1, 1)]).0, "...");
    let grown = vec![
        stack(&["old", "main"], 430, 9),
        stack(&["cache", "main"], 90, 5),
        stack(&["new", "main"], 60, 2),
    ];
    let (signs, findings) = against(grown);
    assert_eq!(signs, "!!!");
    assert_eq!(
        findings[0].found,
        "90 B in 2 blocks at 2 sites beyond the baseline"
    );
    assert_eq!(findings[0].culprits[0].site, "new < main");
    // An existing baseline file is replaced, another kind of file is not.
    assert!(Gate::open(&writing).is_ok());
    std::fs::write(&path, "something else").expect("our own file");
    let error = Gate::open(&writing).err().expect("refused").to_string();
    assert!(error.contains("already exists"), "{error}");
}

/// Site names are stable across builds: without compilers' suffixes, without the start-up frames of all
/// programs, and regardless of the depth of recursion.
#[test]
fn sites_survive_other_builds() {
    let mut names = SiteNames::default();
    let mut key = |stack: leak_report::model::Stack| {
        let report = report(vec![stack]);
        let key = SiteNamer::new(&mut names).site(report.stack(&report.stacks[0]));
        names.functions(&key).map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = ["malloc", "f(int)", "walk", "main"];
    for frames in [
        &["f(int)", "walk", "main"][..],
        &[
            "f(int) [clone .part.0] [clone .cold]",
            "walk",
            "walk",
            "main",
            "__libc_start_main",
            "_start",
        ],
        &["f(int)", "walk.constprop.0.isra.0", "main.cold", "_start"],
        &["f(int)", "walk", "main", "__libc_start_main", ""],
    ] {
        assert_eq!(key(stack(frames, 1, 1)), plain);
    }
    let inlined = vec![
        frame("walk", Some("f(int)"), "/bin/p", None),
        frame("main", None, "/bin/p", None),
        frame("", None, "/usr/lib/libc.so.6", None),
    ];
    assert_eq!(key(framed(inlined)), plain);
    // A stack with nothing else keeps all frames; a frame without a symbol is named after its module.
    assert_eq!(key(stack(&["_start"], 1, 1)), ["malloc", "_start"]);
    let unnamed = vec![
        frame("", None, "/usr/lib/libx.so.1", None),
        frame("  ", None, "/bin/p", None),
    ];
    assert_eq!(key(framed(unnamed)), ["malloc", "[libx.so.1]", "[unknown]"]);
    assert_eq!(key(stack(&["malloc", "malloc"], 1, 1)), ["malloc", "malloc"]);
}

/// Exceeded takes precedence over inconclusive, and that over passed.
#[test]
fn statuses() {
    let status = |conditions: &[&str], lost| {
        let settings = settings(conditions);
        let mut gate = Gate::open(&settings).expect("nothing to open");
        let mut report = report(vec![stack(&["f"], 100, 1)]);
        report.losses.blocks = lost;
        report.targets.push(target());
        gate.check(&Arc::new(report));
        gate.finish(7).expect("nothing to write")
    };
    assert_eq!(status(&[], 5), None);
    assert_eq!(status(&["outstanding>100"], 0), None);
    assert_eq!(status(&["outstanding>100"], 5), Some(3));
    assert_eq!(status(&["outstanding>100", "blocks>0"], 5), Some(1));
    assert_eq!(status(&["growth>1/s"], 0), Some(3));
}
