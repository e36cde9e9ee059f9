//! Sampling and filters: estimates are as good as they say, a block's free takes away what it added, and a
//! call that is not recorded leaves nothing behind.

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Estimate, Report};

const RELEASE: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];

const KINDS: [&str; 3] = ["allocate_small", "allocate_middle", "allocate_large"];

/// Amounts of each kind that `sizes.c` keeps, in both threads together.
const KEPT: [Amount; 3] = [
    // 16 to 78 without the odd ones, on average 47.
    Amount {
        bytes: 2 * 20_000 * 47,
        blocks: 40_000,
    },
    Amount {
        bytes: 2 * 1000 * (1000 + 999),
        blocks: 2000,
    },
    Amount {
        bytes: 2 * 20 * 262_144,
        blocks: 40,
    },
];

/// Maximum number of 95 % intervals, of `of` independent ones, that may miss the truth by accident.
const fn most_misses(of: u32) -> u32 {
    // A mean of 3 of 60; 13 or more in one of 100 000 runs.
    of * 12 / 60
}

struct Sampled {
    mixed: Report,
    done: Report,
}

/// Traces `sizes.c` with two reports: when half is freed, and when all is.
#[track_caller]
fn trace(path: &std::path::Path, flags: &[&str]) -> Sampled {
    let mut program = Program::start(path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("mixed");
    let mixed = memleak.finish();
    assert!(program.end().success());
    // A second run, to the end: the first trace ended with its report.
    let mut program = Program::start(path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("mixed");
    program.step("done");
    let done = memleak.finish();
    assert!(program.end().success());
    Sampled { mixed, done }
}

/// Returns whether the truth lies in the estimate's 95 % interval, of bytes and of blocks.
#[allow(clippy::cast_precision_loss, reason = "amounts are far below 2^53")]
fn is_within(estimate: &Estimate, truth: Amount) -> (bool, bool) {
    let error = estimate.standard_error.expect("an estimate has an error");
    let near = |estimate: u64, truth: u64, error: f64| {
        // Half a unit for the rounding of what is shown.
        (estimate as f64 - truth as f64).abs() <= 1.96 * error + 0.5
    };
    (
        near(estimate.bytes, truth.bytes, error.bytes),
        near(estimate.blocks, truth.blocks, error.blocks),
    )
}

/// Checks in twenty runs how often the truth is in the interval, per kind and in all.
#[allow(clippy::print_stdout, reason = "what the test found")]
fn check_estimates(test: &str, flags: &[&str]) {
    const RUNS: u32 = 20;
    let path = compile(
        &directory(&format!("sampling-{test}")),
        "amounts/sizes.c",
        &RELEASE,
    );
    let truth: Amount = KEPT.into_iter().sum();
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..RUNS {
        let mut program = Program::start(&path, &[]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), flags);
        program.step("mixed");
        let report = memleak.finish();
        assert!(program.end().success());
        report.check_sums();
        let in_all = is_within(&report.outstanding, truth);
        hits += u32::from(in_all.0);
        for (kind, truth) in KINDS.into_iter().zip(KEPT) {
            let estimate = report.estimate_through(kind);
            let (bytes, blocks) = is_within(&estimate, truth);
            misses += u32::from(!bytes);
            assert_eq!(report.lost.blocks, 0);
            assert!(
                blocks || !bytes || kind != "allocate_large",
                "{kind}: {estimate:?}"
            );
        }
    }
    println!(
        "{flags:?}: in all {hits} of {RUNS} in the interval, by kind {misses} of {} not",
        3 * RUNS
    );
    assert!(misses <= most_misses(3 * RUNS), "{misses} of {}", 3 * RUNS);
    assert!(hits >= RUNS - 6, "{hits} of {RUNS}");
}

/// The truth is in the stated 95 % interval of estimates from bytes as often as that says.
#[test]
fn estimates_by_bytes() {
    check_estimates("bytes", &["--sample-bytes", "4K"]);
}

/// The truth is in the stated 95 % interval of estimates from calls as often as that says.
#[test]
fn estimates_by_calls() {
    check_estimates("calls", &["-s", "20"]);
}

/// Blocks much larger than the distance between chosen bytes are all recorded, and exact; what is freed is
/// taken away exactly, so that nothing is left at the end, and no error.
#[test]
fn frees_of_sampled_blocks_are_exact() {
    let path = compile(&directory("sampling-frees"), "amounts/sizes.c", &RELEASE);
    for flags in [["--sample-bytes", "2K"], ["--sample-rate", "7"]] {
        let Sampled { mixed, done } = trace(&path, &flags);
        if flags[0] == "--sample-bytes" {
            let large = mixed.only_through("allocate_large");
            assert_eq!(large.outstanding, KEPT[2], "{mixed}");
        }
        assert!(mixed.outstanding.bytes > 0 && mixed.outstanding.recorded_blocks > Some(100));
        assert_eq!(done.outstanding(), Amount::default(), "{done}");
        let error = done.outstanding.standard_error.expect("an estimate");
        assert_eq!((error.bytes, error.blocks), (0.0, 0.0));
        assert_eq!(done.outstanding.recorded_blocks, Some(0));
        assert!(done.events.frees > 0);
        assert_eq!((done.events.unknown_frees, done.events.missed_frees), (0, 0));
    }
}

/// One of one is all: amounts are exact, and marked as such.
#[test]
fn interval_of_one_is_exact() {
    let path = compile(&directory("sampling-one"), "amounts/sizes.c", &RELEASE);
    let Sampled { mixed, done } = trace(&path, &["-s", "1"]);
    assert!(mixed.sampling.is_none());
    for (kind, truth) in KINDS.into_iter().zip(KEPT) {
        let stacks = mixed.through(kind);
        assert_eq!(
            stacks.iter().map(|stack| stack.outstanding).sum::<Amount>(),
            truth,
            "{mixed}"
        );
    }
    assert_eq!(done.outstanding(), Amount::default(), "{done}");
}

/// Checks that limits are inclusive; what is outside of them is counted and leaves nothing behind, and a
/// reallocation outside of them still frees the recorded block.
#[track_caller]
fn check_limits(test: &str, flags: &[&str]) {
    let path = compile(
        &directory(&format!("sampling-limits-{test}")),
        "amounts/limits.c",
        &RELEASE,
    );
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[&["-z", "100", "-Z", "200"], flags].concat());
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    let rows: [(&str, u64, u64, u64); 8] = [
        ("least", 100, 1, 1),
        ("most", 200, 1, 1),
        ("within_freed", 150, 1, 0),
        ("outgrown", 151, 1, 0),
        ("shrunk", 152, 1, 1),
        ("survivor", 153, 1, 1),
        ("realloc_within", 154, 1, 1),
        ("by_pointer", 155, 5, 5),
    ];
    for (site, size, allocated, outstanding) in rows {
        let stack = report.only_through(site);
        let amount = |blocks| Amount {
            bytes: size * blocks,
            blocks,
        };
        assert_eq!(
            (stack.allocated, stack.outstanding),
            (amount(allocated), amount(outstanding)),
            "{site}:\n{report}"
        );
    }
    assert_eq!(report.stacks.len(), rows.len(), "nothing else:\n{report}");
    // below, above, above_freed, outgrows, too_large, aligned_below, aligned_little_below, realloc_below,
    // five by pointer, and the one that fails.
    assert_eq!(report.events.filtered, 14, "{report}");
    assert_eq!(
        report.events.unknown_frees, 0,
        "frees of what was filtered are not unknown"
    );
}

#[test]
fn size_limits() {
    check_limits("session", &[]);
}

/// Size limits hold by separate entry and return probes.
#[test]
fn size_limits_by_multi_probes() {
    check_limits("multi", &["--attach", "multi"]);
}
