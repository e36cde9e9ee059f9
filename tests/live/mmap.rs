//! Mappings (`--mmap`): for each function that maps, exactly the bytes that it was given and that are left,
//! whatever was unmapped, covered, moved or cut since.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use leak_report::model::RegionCall;
use memleak::cli::{Cli, Config};
use memleak::process::maps::{MapsEntry, parse};
use memleak::process::regions::{CallMoment, RegionEvent, Regions};
use memleak::session::{Session, Signals, storages};
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Report, Stack};
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

/// A function of the program, the call that it makes, what its mapping is for, the bytes that it was given,
/// and the bytes that are left of them.
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
        // Three neighbours, a hole, and a mapping that failed to grow with the one that stopped it were
        // mapped over it.
        ("room", "mmap", "reservation", 64 * page, (64 - 12 - 10 - 5) * page),
        ("covered", "mmap", "anonymous", 8 * page, 6 * page),
        ("cover", "mmap", "anonymous", 2 * page, 2 * page),
        ("not_replaced", "mmap", "anonymous", 4 * page, 4 * page),
        ("grow_old", "mmap", "anonymous", 4 * page, 0),
        ("grow", "mremap", "anonymous", 6 * page, 6 * page),
        ("shrink_old", "mmap", "anonymous", 8 * page, 0),
        ("shrink", "mremap", "anonymous", 3 * page, 3 * page),
        // Its two middle pages are moved.
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

/// Functions whose calls map nothing.
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
    let path = compile(
        &directory(&format!("mmap-{test}")),
        "mappings/mappings.c",
        &RELEASE,
    );
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

/// Each way to map and unmap leaves exactly the remaining bytes at the function that mapped them, with a
/// complete stack that starts at the call itself; calls that fail change nothing; what is an allocator's or a
/// thread's is named as such; what was there before the attach is only counted.
#[test]
fn mapping_calls_leave_exact_remainders() {
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

/// Mappings beyond the capacity are counted as lost, with their bytes; those that are known stay right.
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

/// A child's unmapping of what it has of its parent leaves the parent's alone; its own mappings, and those of
/// what it executes, are its own, and stay as what it held at its end.
#[test]
fn mappings_of_children_are_separate() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let path = compile(
        &directory("mmap-children"),
        "mappings/mapping_children.c",
        &RELEASE,
    );
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
        // Its tables may not have been loaded yet: it is recognized by its size.
        ("", 37, Some("exited")),
    ] {
        let is_same = |stack: &&Stack| match site {
            "" => stack.outstanding.bytes == pages * page(),
            site => stack.passes(site),
        };
        let found: Vec<_> = report.stacks.iter().filter(is_same).collect();
        let [stack] = found[..] else {
            panic!("one stack of {site} {pages}:\n{report}");
        };
        assert_eq!(stack.outstanding.bytes, pages * page(), "{stack}");
        assert_eq!(stack.allocated.bytes, pages * page(), "{stack}");
        assert_eq!(stack.ended.as_deref(), ended, "{stack}");
        assert_eq!(stack.pid == program.pid(), site == "of_parent", "{stack}");
    }
    // The child unmapped its copy of its parent's mapping.
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

/// Address of the 64 pages in which a program that prints its calls makes them.
const WINDOW: u64 = 0x1000_0000_0000;

/// A call that a program has made, and which pages of its window were mapped after it, as bits.
struct RecordedCall {
    event: RegionEvent,
    mapped: u64,
}

impl RecordedCall {
    fn parse(line: &str, number: u64) -> Self {
        let mut words = line.split(' ');
        let call = match words.next().expect("a system call").parse() {
            Ok(libc::SYS_mmap) => RegionCall::Mmap,
            Ok(libc::SYS_munmap) => RegionCall::Munmap,
            Ok(libc::SYS_mremap) => RegionCall::Mremap,
            _ => panic!("{line}"),
        };
        let words: Vec<_> = words.map(|word| u64::from_str_radix(word, 16)).collect();
        let [
            Ok(first),
            Ok(second),
            Ok(third),
            Ok(fourth),
            Ok(fifth),
            Ok(result),
            Ok(mapped),
        ] = words[..]
        else {
            panic!("{line}");
        };
        let stack = u32::try_from(number).expect("few");
        let event = RegionEvent {
            instance: 1,
            thread: 1,
            call,
            arguments: [first, second, third, fourth, fifth],
            time: number,
            moment: CallMoment::Ended { result, stack },
        };
        Self { event, mapped }
    }

    /// Applies the call to `owners`: for each page of the window, the call that mapped it since the attach.
    fn follow(&self, owners: &mut [Option<u32>; 64]) {
        let [first, second, third, flags, fifth] = self.event.arguments;
        let CallMoment::Ended { result, stack } = self.event.moment else {
            panic!("it has ended");
        };
        let pages = |start: u64, bytes: u64| {
            let first = (start - WINDOW) / page();
            usize::try_from(first).expect("small")..usize::try_from(first + bytes / page()).expect("small")
        };
        let before = *owners;
        match self.event.call {
            // Failed calls may have made room all the same.
            _ if result > 4096_u64.wrapping_neg() => {}
            RegionCall::Munmap => owners[pages(first, second)].fill(None),
            RegionCall::Mmap => owners[pages(result, second)].fill(Some(stack)),
            RegionCall::Mremap => {
                let (old, new) = (pages(first, second), pages(result, third));
                let is_placed = flags & 2 == 0;
                if flags & 4 == 0 {
                    owners[old.clone()].fill(None);
                }
                if is_placed && third <= second {
                    // Nothing is looked at beyond the first address.
                    new.for_each(|page| owners[page] = before[page].map(|_| stack));
                } else if second == third {
                    // At a given place, several mappings move, and what is between them does not.
                    old.zip(new)
                        .for_each(|(from, to)| owners[to] = before[from].map(|_| stack).or(before[to]));
                } else {
                    owners[new].fill(Some(stack));
                }
                assert_eq!(fifth < WINDOW, is_placed, "the flag");
            }
            RegionCall::Brk | RegionCall::Madvise => panic!("none is made"),
        }
        for (number, owner) in owners.iter_mut().enumerate() {
            let is_mapped = self.mapped >> number & 1 == 1;
            assert!(owner.is_some() || !is_mapped, "page {number}: {:x?}", self.event);
            *owner = owner.filter(|_| is_mapped);
        }
    }

    /// The process's maps, as far as the window goes.
    fn maps(&self) -> Vec<MapsEntry> {
        let pages = (0..64).filter(|number| self.mapped >> number & 1 == 1);
        let lines = pages.map(|number| {
            let start = WINDOW + number * page();
            format!("{start:x}-{:x} rw-p 00000000 00:00 0\n", start + page())
        });
        let text: String = lines.collect();
        let entries = parse(text.as_bytes()).collect::<Result<_, _>>();
        entries.expect("it is what the kernel writes")
    }
}

/// After each of thousands of random calls, each page is attributed to the call that mapped it last, in
/// agreement with the kernel; only failed calls leave doubt.
#[test]
fn random_calls_equal_the_kernels_state() {
    let path = compile(&directory("mmap-told"), "mappings/random_mappings.c", &RELEASE);
    for seed in 1..=8_u64 {
        let output = Command::new(&path)
            .args([&seed.to_string(), "4000", "1", "told"])
            .output()
            .expect("it runs");
        assert!(output.status.success());
        let mut regions = Regions::new(1000);
        regions.enter_existing(&[], 0);
        let mut owners = [None; 64];
        for (number, line) in (1..).zip(String::from_utf8_lossy(&output.stdout).lines()) {
            let recorded = RecordedCall::parse(line, number);
            recorded.follow(&mut owners);
            let begins = CallMoment::Begins { program_break: 0 };
            for moment in [begins, recorded.event.moment] {
                regions.apply(&RegionEvent {
                    moment,
                    ..recorded.event
                });
            }
            if regions.has_doubts() {
                let CallMoment::Ended { result, .. } = recorded.event.moment else {
                    panic!("it has ended");
                };
                assert!(result > 4096_u64.wrapping_neg(), "seed {seed}, {line}");
                regions.settle(regions.mark(), &recorded.maps());
            }
            let mut known = [None; 64];
            for (range, region) in regions.iter() {
                for address in
                    (range.start.get()..range.end.get()).step_by(usize::try_from(page()).expect("small"))
                {
                    let number = usize::try_from((address - WINDOW) / page()).expect("small");
                    known[number] = Some(region.stack);
                }
            }
            assert_eq!(known, owners, "seed {seed}, call {number}: {line}");
        }
    }
}

/// Has a program make `rounds` of random calls on four threads, `calls` on each, and checks after each round
/// that the mappings known since the attach are those that the kernel shows.
#[track_caller]
fn follow_random_calls(path: &Path, seed: u64, calls: u64, rounds: u64, windows: &str) {
    let arguments = [
        &seed.to_string(),
        &calls.to_string(),
        &rounds.to_string(),
        windows,
    ];
    let mut program = Program::start(path, &arguments);
    program.expect("ready");
    let pid = program.pid();
    let arguments = ["memleak", "--mmap", "-p", &pid.to_string()];
    let trace = Cli::try_parse_from(arguments).expect("it parses").trace;
    let config = Config::try_from(trace).expect("it makes sense").trace;
    let mut storages = storages();
    let mut session = Session::start(&mut storages, &config).expect("it can be traced");
    let before = maps(pid);
    for round in 1..=rounds {
        program.send_line("");
        let waiter = std::thread::spawn(move || {
            program.expect("done");
            program
        });
        while !waiter.is_finished() {
            let deadline = Instant::now() + Duration::from_millis(5);
            session.follow(deadline, &Signals::default()).expect("it goes on");
        }
        program = waiter.join().expect("it says that it is done");
        let ours = session.regions().expect("it can be read");
        let ours = joined(
            ours.into_iter()
                .map(|(_, range)| range.start.get()..range.end.get()),
        );
        let new = without(&maps(pid), &before);
        let when = format!("{windows} windows, seed {seed}, round {round}");
        // The number of these ranges is random: neighbours are one.
        assert!(!new.is_empty(), "{when}: there is nothing to compare");
        assert_eq!(without(&new, &ours), [], "mapped, and not known; {when}");
        assert_eq!(without(&ours, &new), [], "known, and not mapped; {when}");
        let not_seen = session.region_ends_not_seen();
        assert_eq!(not_seen, 0, "found out by all maps, and not by calls; {when}");
    }
    assert!(program.end().success());
}

/// After each hundred of random calls on each of four threads, failing ones among them, what is known to be
/// mapped since the attach is what the kernel says, to the page.
#[test]
fn random_calls_of_threads_equal_the_maps() {
    memleak_test::program::require_root();
    let path = compile(&directory("mmap-random"), "mappings/random_mappings.c", &RELEASE);
    for seed in 1..=4 {
        follow_random_calls(&path, seed, 100, 100, "own");
    }
}

/// Calls of threads that all work on the same addresses, so that their order is not known, leave the mappings
/// that the kernel shows.
#[test]
fn crossing_calls_equal_the_maps() {
    memleak_test::program::require_root();
    let path = compile(
        &directory("mmap-crossing"),
        "mappings/random_mappings.c",
        &RELEASE,
    );
    for seed in 1..=4 {
        follow_random_calls(&path, seed, 100, 100, "shared");
    }
}

/// Calls that come faster than memleak takes them in, and so are not seen, are counted with their bytes, and
/// what they unmapped is found otherwise: nothing is reported as mapped that is not.
#[test]
fn calls_that_were_not_seen_are_counted() {
    if lacks(Feature::Tracefs) {
        return;
    }
    let path = compile(&directory("mmap-queue"), "mappings/random_mappings.c", &RELEASE);
    let mut program = Program::start(&path, &["1", "60000", "1", "own"]);
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
