//! Sizes of blocks, names of the threads that allocated them, and how long freed ones lived are what the
//! program did.

use memleak_test::makeup::{Makeup, SizeClass, ThreadBlocks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Amount, Report};

/// Traces the program with `flags` from its first block to its last.
fn traced(test: &str, flags: &[&str]) -> Report {
    let flags_of_program = ["-O2", "-fno-optimize-sibling-calls", "-pthread"];
    let directory = directory(&format!("makeup-{test}"));
    let path = compile(&directory, "amounts/makeup.c", &flags_of_program);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("done");
    memleak.finish()
}

fn makeup_of<'a>(report: &'a Report, function: &str) -> &'a Makeup {
    let stack = report.only_through(function);
    stack.makeup.as_ref().unwrap_or_else(|| panic!("{stack}"))
}

/// Outstanding blocks are in the classes of their sizes, and are their threads'; every freed block has its
/// life span, also one that another thread freed, or that `realloc` did.
#[test]
fn blocks_are_what_they_were() {
    let report = traced("all", &[]);
    let mut sizes: Vec<_> = Vec::new();
    let mut threads: Vec<_> = Vec::new();
    for stack in report.through("keep_block") {
        let makeup = stack.makeup.as_ref().unwrap_or_else(|| panic!("{stack}"));
        let class = |class: &SizeClass| {
            (
                class.smallest,
                class.largest,
                class.amount.bytes,
                class.amount.blocks,
            )
        };
        sizes.extend(makeup.sizes.iter().map(class));
        let thread = |thread: &ThreadBlocks| (thread.name.clone(), thread.amount);
        threads.extend(makeup.threads.iter().map(thread));
        assert_eq!(makeup.freed.parts(), (0, vec![]), "{stack}");
    }
    sizes.sort_unstable();
    threads.sort_unstable_by_key(|thread| thread.1.bytes);
    let small = (17..27).sum();
    assert_eq!(
        sizes,
        [(17, 26, small, 10), (24, 24, 2400, 100), (4096, 4096, 81_920, 20)]
    );
    let of = |name: &str, bytes, blocks| (Some(name.to_owned()), Amount { bytes, blocks });
    let expected = [
        of("makeup", small, 10),
        of("makeup", 2400, 100),
        of("worker", 81_920, 20),
    ];
    assert_eq!(threads, expected);
    let freed = |function| makeup_of(&report, function).freed.parts();
    // A thread can be kept from its CPU for long between an allocation and a free.
    let (temporary, by_age) = freed("temporary_block");
    let all = temporary + by_age.iter().map(|(_, blocks)| blocks).sum::<u64>();
    assert!(all == 300 && temporary > 290, "{temporary}, {by_age:?}");
    // The last of them was the newest, but is not temporary: it is old by then.
    assert_eq!(freed("lasting_block"), (0, vec![(10_000, 40)]));
    let (temporary, by_age) = freed("handed_block");
    let all = by_age.iter().map(|(_, blocks)| blocks).sum::<u64>();
    assert_eq!((temporary, all), (0, 40), "{by_age:?}");
    let (temporary, by_age) = freed("resized_block");
    let all = temporary + by_age.iter().map(|(_, blocks)| blocks).sum::<u64>();
    assert!(all == 5 && temporary > 2, "{temporary}, {by_age:?}");
}

/// With sampling, these are estimates that agree with the totals.
#[test]
fn sampled_blocks_add_up() {
    let report = traced("sampled", &["--sample-rate", "4"]);
    let mut blocks = 0;
    for stack in &report.stacks {
        let makeup = stack.makeup.as_ref().unwrap_or_else(|| panic!("{stack}"));
        let of_sizes: u64 = makeup.sizes.iter().map(|class| class.amount.blocks).sum();
        let of_threads: u64 = makeup.threads.iter().map(|thread| thread.amount.blocks).sum();
        assert_eq!(
            (of_sizes, of_threads),
            (stack.outstanding.blocks, stack.outstanding.blocks),
            "{stack}"
        );
        let (temporary, by_age) = makeup.freed.parts();
        let freed = temporary + by_age.iter().map(|(_, blocks)| blocks).sum::<u64>();
        assert_eq!(
            freed,
            stack.allocated.blocks - stack.outstanding.blocks,
            "{stack}"
        );
        blocks += freed;
    }
    assert!(blocks > 200, "{blocks} of 385");
}
