//! Mappings (`--mmap`): for each function that maps, exactly the bytes that it was given and that are left, whatever
//! was unmapped, covered, moved or cut since. Needs root.

mod common;

use std::ops::Range;
use std::time::{Duration, Instant};

use clap::Parser;
use common::machine::{Feature, lacks};
use common::memleak::Memleak;
use common::program::{Program, compile, directory};
use common::report::{Amount, Report, Stack};
use memleak::cli::Cli;
use memleak::config::Config;
use memleak::session::{Session, Signals, storages};
use nix::unistd::{SysconfVar, sysconf};

const RELEASE: [&str; 4] = [
    "-O2",
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-pthread",
];

const MIB: u64 = 1 << 20;

/// Bytes of a page here.
fn page() -> u64 {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).expect("it is always told");
    bytes.expect("it is limited").cast_unsigned()
}

/// A function of the program, the call that it makes, what its mapping is for, the bytes that it was given, and the
/// bytes that are left of them.
type Row = (&'static str, &'static str, &'static str, u64, u64);

#[rustfmt::skip]
fn rows(page: u64) -> Vec<Row> {
    vec![
        ("whole", "mmap", "anonymous", 4 * page, 4 * page),
        ("rounded", "mmap", "anonymous", 5 * page, 5 * page),
        ("unmapped", "mmap", "anonymous", 4 * page, 0),
        ("head_cut", "mmap", "anonymous", 10 * page, 7 * page),
        ("tail_cut", "mmap", "anonymous", 10 * page, 7 * page),
        ("middle_cut", "mmap", "anonymous", 10 * page, 5 * page),
        ("cut_to_pieces_and_gone", "mmap", "anonymous", 3 * page, 0),
        ("span_low", "mmap", "anonymous", 4 * page, 2 * page),
        ("span_middle", "mmap", "anonymous", 4 * page, 0),
        ("span_high", "mmap", "anonymous", 4 * page, page),
        // Three neighbours, a hole, and what failed to grow and its stopper were mapped over it.
        ("room", "mmap", "reservation", 64 * page, (64 - 12 - 10 - 5) * page),
        ("covered", "mmap", "anonymous", 8 * page, 6 * page),
        ("cover", "mmap", "anonymous", 2 * page, 2 * page),
        ("not_replaced", "mmap", "anonymous", 4 * page, 4 * page),
        ("grow_old", "mmap", "anonymous", 4 * page, 0),
        ("grow", "mremap", "anonymous", 6 * page, 6 * page),
        ("shrink_old", "mmap", "anonymous", 8 * page, 0),
        ("shrink", "mremap", "anonymous", 3 * page, 3 * page),
        // Its last three pages, of which two are told to move.
        ("move_old", "mmap", "anonymous", 4 * page, 2 * page),
        ("move_part", "mremap", "anonymous", 5 * page, 5 * page),
        ("fixed_old", "mmap", "anonymous", 4 * page, 0),
        ("fixed_under", "mmap", "anonymous", 8 * page, 4 * page),
        ("fixed", "mremap", "anonymous", 4 * page, 4 * page),
        ("stay_old", "mmap", "anonymous", 4 * page, 4 * page),
        ("stay", "mremap", "anonymous", 4 * page, 4 * page),
        ("duplicated", "mmap", "shared", 4 * page, 4 * page),
        ("duplicate", "mremap", "shared", 4 * page, 4 * page),
        ("stuck", "mmap", "anonymous", 4 * page, 4 * page),
        ("stopper", "mmap", "anonymous", page, page),
        ("kept_by_failure", "mmap", "anonymous", 4 * page, 4 * page),
        ("huge_reservation", "mmap", "reservation", 2 << 40, 2 << 40),
        ("growing_break", "brk", "anonymous", 5 * page, 5 * page),
        ("growing_break_more", "brk", "anonymous", 7 * page, 4 * page),
        ("file", "mmap", "file", page, page),
        // The block and malloc's own two words, in whole pages.
        ("from_malloc", "mmap", "allocator", 8 * MIB + page, 8 * MIB + page),
    ]
}

/// Functions whose calls give nothing.
const GIVING_NOTHING: &[&str] = &[
    "refused_to_replace",
    "bad_length",
    "too_large",
    "failing_mremap",
    "failing_munmap",
    "shrinking_break",
];

/// Two calls of `munmap`, the other four of as many functions.
const FAILED_CALLS: u64 = 6;

#[track_caller]
fn trace(test: &str, flags: &[&str]) -> Report {
    let path = compile(&directory(&format!("live_mmap-{test}")), "mappings.c", &RELEASE);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let flags: Vec<_> = ["--mmap"].iter().chain(flags).copied().collect();
    let memleak = Memleak::attach(program.pid(), &flags);
    program.step("done");
    let report = memleak.finish();
    assert!(program.end().success(), "the program is none the worse for it");
    report.check_sums();
    report
}

/// Each way to map and unmap leaves exactly the remaining bytes at the function that mapped them, with a complete
/// stack that starts at the call itself; calls that fail change nothing; what is an allocator's or a thread's is
/// named as such; what was there before the attach is only counted.
#[test]
fn every_call_leaves_exactly_what_is_mapped() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let report = trace("calls", &[]);
    for (site, call, kind, given, left) in rows(page()) {
        let through = report.through(site);
        let of_call: Vec<_> = through
            .into_iter()
            .filter(|stack| stack.allocator == call)
            .collect();
        let [stack] = of_call[..] else {
            panic!("one stack through {site} to {call}:\n{report}");
        };
        let amount = |bytes: u64| Amount {
            bytes,
            blocks: u64::from(bytes > 0),
        };
        assert_eq!(stack.kind.as_deref(), Some(kind), "{site}:\n{stack}");
        assert_eq!(
            (stack.allocated, stack.outstanding),
            (amount(given), amount(left)),
            "{site}:\n{stack}"
        );
        assert_eq!(stack.end, "complete", "{stack}");
        assert_eq!(stack.names().last(), Some(&"_start"), "{stack}");
    }
    for site in GIVING_NOTHING {
        assert!(report.through(site).is_empty(), "{site}:\n{report}");
    }
    // The stack itself and the page that guards it.
    let thread = report.through("thread");
    let stacks: Vec<_> = thread
        .iter()
        .filter(|stack| stack.kind.as_deref() == Some("thread_stack"))
        .collect();
    let [stack] = stacks[..] else {
        panic!("one stack of a thread:\n{report}");
    };
    assert_eq!(stack.outstanding.blocks, 1, "{stack}");
    assert!(stack.outstanding.bytes >= 2 * MIB, "{stack}");
    for other in thread {
        let kind = other.kind.as_deref();
        assert!(matches!(kind, Some("thread_stack" | "allocator")), "{other}");
    }
    assert_eq!(report.events.failed, FAILED_CALLS, "{report}");
    assert_eq!(report.events.unknown_frees, 1, "{report}");
    assert_eq!(report.lost.blocks, 0, "{report}");
}

/// When there is no room for more mappings, they are counted as lost, with their bytes; those that are known stay
/// right.
#[test]
fn mappings_beyond_the_capacity_are_counted() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let report = trace("capacity", &["--max-blocks", "4"]);
    let reservation = report.only_through("huge_reservation");
    assert_eq!(reservation.lost.bytes, 2 << 40, "{reservation}");
    assert!(report.lost.blocks > 0 && report.lost.bytes >= 2 << 40, "{report}");
    assert_eq!(
        report.lost.causes.get("region_table_full"),
        Some(&report.lost.blocks),
        "{report}"
    );
    let whole = report.only_through("whole");
    assert_eq!(whole.outstanding.bytes, 4 * page(), "{whole}");
}

/// A child's unmapping of what it has of its parent leaves the parent's alone; its own mappings, and those of what it
/// executes, are its own, and stay as what it held at its end.
#[test]
fn children_have_mappings_of_their_own() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let path = compile(&directory("live_mmap-children"), "mapping_children.c", &RELEASE);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--mmap", "--follow-fork"]);
    program.step("done");
    let report = memleak.finish();
    assert!(program.end().success());
    report.check_sums();
    for (site, pages, ended) in [
        ("of_parent", 4, None),
        ("of_child", 2, Some("exec")),
        // Its tables need not have been there yet: its size names it.
        ("", 37, Some("exited")),
    ] {
        let is_it = |stack: &&Stack| match site {
            "" => stack.outstanding.bytes == pages * page(),
            site => stack.passes(site),
        };
        let found: Vec<_> = report.stacks.iter().filter(is_it).collect();
        let [stack] = found[..] else {
            panic!("one stack of {site} {pages}:\n{report}");
        };
        assert_eq!(stack.outstanding.bytes, pages * page(), "{stack}");
        assert_eq!(stack.allocated.bytes, pages * page(), "{stack}");
        assert_eq!(stack.ended.as_deref(), ended, "{stack}");
        assert_eq!(stack.pid == program.pid(), site == "of_parent", "{stack}");
    }
    // The child's copy of its parent's.
    assert!(report.events.unknown_frees >= 1, "{report}");
}

/// Ranges of addresses, ascending and joined.
fn joined(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut sorted: Vec<_> = ranges.into_iter().collect();
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// `ranges` without `holes`, both joined.
fn without(ranges: &[Range<u64>], holes: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    for range in ranges {
        let mut from = range.start;
        for hole in holes
            .iter()
            .filter(|hole| hole.end > range.start && hole.start < range.end)
        {
            left.push(from..hole.start.max(from));
            from = from.max(hole.end);
        }
        left.push(from.min(range.end)..range.end);
    }
    left.retain(|range| !range.is_empty());
    joined(left)
}

fn maps(pid: u32) -> Vec<Range<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let range = |line: &str| {
        let (start, rest) = line.split_once('-').expect("a range");
        let (end, _) = rest.split_once(' ').expect("a range");
        let number = |digits| u64::from_str_radix(digits, 16).expect("hexadecimal");
        number(start)..number(end)
    };
    // The trampoline of probes is the kernel's.
    joined(
        text.lines()
            .filter(|line| !line.ends_with("[uprobes]"))
            .map(range),
    )
}

/// After thousands of random calls on four threads, failing ones among them, what is known to be mapped since the
/// attach is what the kernel says, to the page.
#[test]
fn random_calls_leave_what_the_kernel_says() {
    common::program::require_root();
    let path = compile(&directory("live_mmap-random"), "random_mappings.c", &RELEASE);
    for seed in 1..=4 {
        let mut program = Program::start(&path, &[&seed.to_string(), "5000"]);
        program.expect("ready");
        let pid = program.pid();
        let arguments = ["memleak", "--mmap", "-p", &pid.to_string()];
        let config: Config = Cli::try_parse_from(arguments)
            .expect("it parses")
            .trace
            .try_into()
            .expect("it makes sense");
        let mut storages = storages();
        let mut session = Session::start(&mut storages, &config).expect("it can be traced");
        let before = maps(pid);
        program.tell("");
        let waiter = std::thread::spawn(move || {
            program.expect("done");
            program
        });
        while !waiter.is_finished() {
            let soon = Instant::now() + Duration::from_millis(20);
            session.follow(soon, &Signals::default()).expect("it goes on");
        }
        let mut program = waiter.join().expect("it says that it is done");
        let ours = session.regions().expect("it can be read");
        let ours = joined(
            ours.into_iter()
                .map(|(_, range)| range.start.get()..range.end.get()),
        );
        let new = without(&maps(pid), &before);
        assert!(new.len() > 30, "{new:x?}");
        assert_eq!(without(&new, &ours), [], "mapped, and not known; seed {seed}");
        assert_eq!(without(&ours, &new), [], "known, and not mapped; seed {seed}");
        assert!(program.end().success());
    }
}

/// When calls come faster than they are taken in, those that were not seen are counted with their bytes, and what they
/// unmapped is found out: nothing is said to be mapped that is not.
#[test]
fn calls_that_were_not_seen_are_counted() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let path = compile(&directory("live_mmap-queue"), "random_mappings.c", &RELEASE);
    let mut program = Program::start(&path, &["1", "60000"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--mmap"]);
    memleak.signal("STOP");
    program.step("done");
    let kernel: u64 = maps(program.pid())
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    memleak.signal("CONT");
    let report = memleak.finish();
    assert!(program.end().success());
    report.check_sums();
    let causes = &report.lost.causes;
    assert!(causes["region_queue_full"] > 0, "{report}");
    assert!(
        causes["region_calls_not_seen"] >= causes["region_queue_full"],
        "{report}"
    );
    assert!(report.outstanding().bytes <= kernel, "{report}");
}
