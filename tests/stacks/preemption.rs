//! 64 threads on few processors, preempted at every turn, each allocating through its own deep stacks: every
//! stack is the one that the block's size says, and every call is accounted for.
//!
//! Where the kernel may preempt itself, walks are interrupted by others on their processor, too; those that
//! find no room are counted. `MEMLEAK_FULL_LOAD=1` makes it last for a minute.

use std::collections::BTreeMap;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::Stack;

const THREADS: u64 = 64;
const VARIANTS: u64 = 8;
/// Calls of `left` and `right`, above all of `deeper`.
const PATH_BITS: u64 = 9;
const SMALLEST_BLOCK: u64 = 16;

/// Returns the whole stack of a path, as `pressure.c` says.
fn expected(path: u64) -> Vec<&'static str> {
    let name = |bit| if path >> bit & 1 == 1 { "right" } else { "left" };
    let bits = (0..PATH_BITS).map(name);
    let deeper = (0..=path / VARIANTS).map(|_| "deeper");
    let bottom = ["thread_main", "start_thread", "clone3"];
    ["allocate"]
        .into_iter()
        .chain(bits)
        .chain(deeper)
        .chain(bottom)
        .collect()
}

/// Returns the number of a stack's path, by the size of its blocks.
#[track_caller]
fn path_of(stack: &Stack) -> u64 {
    let (bytes, blocks) = (stack.allocated.bytes, stack.allocated.blocks);
    assert_eq!(bytes % blocks, 0, "blocks of one size:\n{stack}");
    (bytes / blocks)
        .checked_sub(SMALLEST_BLOCK)
        .expect("a block of the program's")
}

/// No stack is wrong, none is another thread's, and every call has one except those whose walk found no room.
#[test]
fn every_stack_is_its_threads() {
    let full = std::env::var_os("MEMLEAK_FULL_LOAD").is_some();
    let rounds = VARIANTS * if full { 40_000 } else { 2000 };
    let flags = ["-O2", "-pthread", "-fno-optimize-sibling-calls"];
    let program = compile(&directory("preemption"), "torture/pressure.c", &flags);
    let mut program = Program::start(&program, &[&rounds.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    report.check_sums();

    let (walked, not_walked): (Vec<&Stack>, Vec<&Stack>) =
        report.stacks.iter().partition(|stack| stack.end == "complete");
    let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
    for stack in walked {
        let path = path_of(stack);
        stack.check(&expected(path));
        assert_eq!(stack.outstanding.blocks, 0, "{stack}");
        assert_eq!(
            blocks.insert(path, stack.allocated.blocks),
            None,
            "twice:\n{stack}"
        );
    }
    let mut without_room = 0;
    for stack in not_walked {
        assert_eq!(
            (stack.end.as_str(), stack.frames.len()),
            ("scratch_busy", 0),
            "{stack}"
        );
        without_room += stack.allocated.blocks;
    }
    let each = rounds / VARIANTS;
    assert_eq!(report.lost.blocks, 0, "{:?}", report.lost);
    assert_eq!(blocks.values().sum::<u64>() + without_room, rounds * THREADS);
    for path in 0..THREADS * VARIANTS {
        let missing = each - blocks.get(&path).copied().unwrap_or(0);
        assert!(
            missing <= without_room,
            "{missing} calls of path {path} are missing"
        );
    }
}
