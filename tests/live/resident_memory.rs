//! Resident memory: the parts that a report names are those of a program whose parts are known.

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::Memory;

const MIB: u64 = 1 << 20;

/// Traces the program from its "ready" to its "done".
#[track_caller]
fn trace(test: &str, flags: &[&str]) -> Memory {
    let directory = directory(&format!("resident_memory-{test}"));
    let path = compile(&directory, "amounts/memory.c", &["-O2", "-pthread"]);
    let file = directory.join("file");
    std::fs::write(&file, vec![1; 16 << 20]).expect("a new file");
    let mut program = Program::start(&path, &[file.to_str().expect("a path of ours")]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.step("done");
    let report = memleak.finish();
    let target = report.targets.first().expect("a target");
    let memory = target.memory.clone().expect("it runs");
    assert_eq!(memory.sum(), memory.rss, "{memory:?}");
    assert_eq!(memory.sum_of_kinds(), memory.rss, "{memory:?}");
    assert!(program.end().success());
    memory
}

/// Checks that `bytes` is `expected` or up to `more` above it.
#[track_caller]
fn check(part: &str, bytes: u64, expected: u64, more: u64, memory: &Memory) {
    assert!(
        (expected..=expected + more).contains(&bytes),
        "{part}: {bytes} is not {expected} or up to {more} more: {memory:?}"
    );
}

/// All parts add up to what is resident, and each is what the program has of it: to the page where it asked
/// for whole pages, otherwise with what the C library and the program itself need besides.
#[test]
fn memory_parts_equal_the_programs() {
    let memory = trace("blocks", &[]);
    check("tracked", memory.tracked, 64 * MIB, MIB / 2, &memory);
    // All of the block that was never touched, except the page of its header.
    let untouched = 100 * MIB - MIB / 2;
    check("not resident", memory.not_resident, untouched, MIB / 2, &memory);
    check(
        "allocator",
        memory.tracked + memory.before_attach_at_most + memory.slack_at_least,
        68 * MIB,
        MIB,
        &memory,
    );
    // 4 MiB of blocks from before the attach, and the first page of the heap.
    let before = memory.before_attach_at_most;
    check("before the attach", before, 3 * MIB, 3 * MIB / 2, &memory);
    check("unexplained", memory.unexplained, 32 * MIB, MIB / 2, &memory);
    check("shared", memory.shared, 8 * MIB, 0, &memory);
    check("stacks", memory.thread_stacks, 8 * MIB, MIB / 2, &memory);
    // Includes the program and its libraries.
    check("files", memory.files, 16 * MIB, 3 * MIB, &memory);
    let grown = memory.growth_elsewhere.expect("what is not allocated");
    check(
        "growth of own mappings",
        grown.unexplained,
        31 * MIB,
        3 * MIB / 2,
        &memory,
    );
    check("growth of shared memory", grown.shared, 8 * MIB, 0, &memory);
    check("growth of stacks", grown.thread_stacks, 8 * MIB, MIB / 2, &memory);
    check("growth of files", grown.files, 16 * MIB, 3 * MIB, &memory);
    check(
        "own mappings",
        memory.of_kind("mappings"),
        32 * MIB,
        MIB / 2,
        &memory,
    );
    check(
        "running stacks",
        memory.of_kind("running_stacks"),
        memory.thread_stacks,
        0,
        &memory,
    );
    let unexplained = memory.of_kind("unexplained");
    assert!(unexplained <= memory.rss / 50, "{memory:?}");
    assert!(
        memory
            .beside
            .as_ref()
            .is_some_and(|beside| beside.page_tables > 0),
        "{memory:?}"
    );
}

/// Traced mappings explain what blocks leave unexplained.
#[test]
fn traced_mappings_and_blocks_add_up() {
    let memory = trace("mappings", &["--mmap"]);
    // A mapping that malloc made for one large block is a mapping too.
    check("tracked", memory.tracked, (32 + 40) * MIB, MIB / 2, &memory);
    check("unexplained", memory.unexplained, 0, MIB / 2, &memory);
    assert!(memory.growth_elsewhere.is_none(), "{memory:?}");
}
