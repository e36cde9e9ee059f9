//! The kernel's own allocations, traced while a program makes the kernel allocate what is known to the byte.
//! Others use the machine too: each claim is about stacks that pass a function of the kernel that only the
//! program calls, and no other test runs meanwhile.

use memleak_test::exclusion::alone;
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Report, Stack};

/// Messages, what each takes (a header of 48 bytes and the text), record locks, and bytes of pages.
const MESSAGES: u64 = 120;
const MESSAGE_BYTES: u64 = 1001 + 48;
const LOCKS: u64 = 150;
const PAGES: u64 = 64 * 4096;
/// Stacks of each kind: the allocator, the function that called it, and one that only the program calls.
const MESSAGE: (&str, &str, &str) = ("kmalloc", "load_msg", "do_msgsnd");
const LOCK: (&str, &str, &str) = ("kmem_cache_alloc", "posix_lock_inode", "fcntl_setlk");
const PAGE: (&str, &str, &str) = ("alloc_pages", "shmem_alloc_folio", "shmem_fallocate");
/// Maximum number of reports until freed memory must be gone: some is freed after a grace period of the
/// kernel, or once a CPU gets to it.
const MAX_REPORTS: usize = 150;

/// Outstanding amount of an allocator from stacks that begin in one function and lead through another.
fn outstanding(report: &Report, (allocator, first, function): (&str, &str, &str)) -> Amount {
    let stacks = stacks(report, (allocator, first, function)).into_iter();
    stacks.map(|stack| stack.outstanding).sum()
}

/// Stacks of an allocator that begin in `first` and pass through `function`. Memory that the slab allocator
/// takes for itself on the way begins elsewhere.
fn stacks<'a>(report: &'a Report, (allocator, first, function): (&str, &str, &str)) -> Vec<&'a Stack> {
    let begins = |stack: &&Stack| stack.frames.first().is_some_and(|frame| frame.name() == first);
    let of_allocator = report.through(function).into_iter().filter(begins);
    of_allocator
        .filter(|stack| stack.allocator == allocator)
        .collect()
}

/// Waits for the first report for which the claim is true.
#[track_caller]
fn await_report(memleak: &Memleak, claim: impl Fn(&Report) -> bool) -> Report {
    for _ in 0..MAX_REPORTS {
        let report = memleak.report();
        check(&report);
        if claim(&report) {
            return report;
        }
    }
    let report = memleak.report();
    let found = [MESSAGE, LOCK, PAGE].map(|of| outstanding(&report, of));
    panic!(
        "the claim does not come true: {found:?}, {:?}, {:?}",
        report.lost, report.events
    );
}

/// Checks every report of kernel mode: one target, and totals that add up.
#[track_caller]
fn check(report: &Report) {
    assert_eq!(report.unwind, "kernel");
    assert_eq!(report.targets.len(), 1);
    assert_eq!(
        (report.targets[0].pid, report.targets[0].comm.as_str()),
        (0, "kernel")
    );
    for stack in &report.stacks {
        assert!(stack.outstanding.blocks <= stack.allocated.blocks, "{stack}");
    }
    // The kernel continues while a report is made: sums over stacks are of one moment, counters of another.
    let allocated = report.stacks.iter().map(|stack| stack.allocated).sum::<Amount>();
    assert_eq!(allocated.blocks + report.lost.blocks, report.events.allocations);
    let outstanding = report
        .stacks
        .iter()
        .map(|stack| stack.outstanding)
        .sum::<Amount>();
    assert_eq!(allocated.blocks - outstanding.blocks, report.events.frees);
    assert_eq!(
        report.unwinding.allocations.values().sum::<u64>(),
        allocated.blocks
    );
}

fn kernel_user(test: &str) -> Program {
    let path = compile(
        &directory(&format!("kernel-{test}")),
        "kernel/kernel_user.c",
        &["-O1"],
    );
    Program::start(&path, &[])
}

/// Messages, locks and pages are outstanding to the block and byte, from stacks that begin at the allocator's
/// caller and end at the system call; and gone when they are freed.
#[test]
fn kernel_objects_and_pages() {
    if lacks(Feature::Btf) {
        return;
    }
    let _alone = alone();
    let mut program = kernel_user("objects");
    let memleak = Memleak::attach_to_kernel(&[], "0.2");
    program.step("done");
    let messages = Amount {
        bytes: MESSAGES * MESSAGE_BYTES,
        blocks: MESSAGES,
    };
    let report = await_report(&memleak, |report| {
        outstanding(report, MESSAGE) == messages
            && outstanding(report, LOCK).blocks == LOCKS
            && outstanding(report, PAGE).bytes == PAGES
    });
    check_stacks(&report);
    program.step("done");
    await_report(&memleak, |report| {
        let left = [MESSAGE, LOCK, PAGE].map(|of| outstanding(report, of));
        left == [Amount::default(); 3]
    });
    program.send_line("");
    memleak.finish();
}

/// Function in which a system call enters the kernel.
const SYSTEM_CALL: &str = if cfg!(target_arch = "aarch64") {
    "el0t_64_sync"
} else {
    "entry_SYSCALL_64_after_hwframe"
};

/// Checks the stacks of what the program made the kernel allocate.
#[track_caller]
fn check_stacks(report: &Report) {
    for of in [MESSAGE, LOCK, PAGE] {
        for stack in stacks(report, of) {
            assert_eq!(stack.end, "complete", "{stack}");
            assert!(stack.passes(SYSTEM_CALL), "{stack}");
            for frame in &stack.frames {
                assert_eq!(frame.found_by, "kernel", "{stack}");
                assert!(
                    frame.module.as_ref().is_some_and(|name| name.starts_with('[')),
                    "{stack}"
                );
            }
        }
    }
}

/// Per-CPU memory is traced with `--percpu`, and not without. A mount allocates some, so that the per-CPU
/// table of another trace is not needed for that.
#[test]
fn percpu_memory_needs_its_flag() {
    if lacks(Feature::Btf) {
        return;
    }
    let _alone = alone();
    for (flags, expected) in [(&["--percpu"][..], true), (&[], false)] {
        let memleak = Memleak::attach_to_kernel(flags, "0.2");
        let directory = directory("kernel-percpu");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "memleak"])
            .arg(&directory)
            .status();
        assert!(mounted.expect("mount is there").success());
        let seen = |report: &Report| {
            let mut stacks = report.stacks.iter();
            stacks.any(|stack| stack.allocator == "alloc_percpu" && stack.outstanding.blocks > 0)
        };
        if expected {
            await_report(&memleak, seen);
        } else {
            memleak.report();
            assert!(!seen(&memleak.report()));
        }
        let unmounted = std::process::Command::new("umount").arg(&directory).status();
        assert!(unmounted.expect("umount is there").success());
        memleak.finish();
    }
}

/// A baseline is marked when that is asked for, however long it is to the next report, which counts from then
/// on.
#[test]
fn a_mark_does_not_wait() {
    if lacks(Feature::Btf) {
        return;
    }
    let _alone = alone();
    let mut program = kernel_user("mark");
    let mut memleak = Memleak::attach_to_kernel(&[], "86400");
    memleak.mark();
    program.step("done");
    let report = memleak.finish();
    check(&report);
    assert!(report.recent.since_baseline.marked.is_some(), "{report}");
    let grown = stacks(&report, MESSAGE).into_iter();
    let blocks: i64 = grown.map(|stack| stack.recent.since_baseline.net_blocks).sum();
    assert_eq!(blocks, MESSAGES.cast_signed(), "{report}");
}

/// A table that is full loses new blocks, and says so.
#[test]
fn a_full_table_is_reported() {
    if lacks(Feature::Btf) {
        return;
    }
    let _alone = alone();
    let mut program = kernel_user("full");
    let memleak = Memleak::attach_to_kernel(&["--max-blocks", "16"], "86400");
    program.step("done");
    program.step("done");
    program.send_line("");
    let report = memleak.finish();
    check(&report);
    assert!(report.lost.blocks > 0, "{report}");
    assert!(report.lost.causes.contains_key("block_table_full"), "{report}");
}

/// Calls are written one by one: each message that is allocated and each that is freed, with its process and
/// its caller.
#[test]
fn calls_of_the_kernel_are_traced() {
    if lacks(Feature::Btf) {
        return;
    }
    let _alone = alone();
    let mut program = kernel_user("calls");
    let size = MESSAGE_BYTES.to_string();
    let flags = ["--format", "json", "-t", "-z", &size, "-Z", &size];
    let memleak = Memleak::attach_to_kernel(&flags, "86400");
    program.step("done");
    program.step("done");
    program.send_line("");
    let text = memleak.finish_text();
    let calls = text.lines().map(|line| -> serde_json::Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    let calls: Vec<_> = calls
        .filter(|call| {
            let caller = call["caller"].as_str().unwrap_or_default();
            call["pid"] == program.pid()
                && call["allocator"] == MESSAGE.0
                && caller.starts_with("load_msg+0x")
        })
        .collect();
    for event in ["allocation", "free"] {
        let traced = calls.iter().filter(|call| call["event"] == event);
        let traced: Vec<_> = traced.filter(|call| call["bytes"] == MESSAGE_BYTES).collect();
        assert_eq!(traced.len() as u64, MESSAGES, "{event}:\n{text}");
        assert!(traced.iter().all(|call| call["comm"] == "kernel_user"), "{text}");
    }
}
