//! Many blocks at once: all are counted, and all found again. `MEMLEAK_FULL_LOAD=1` makes it 20 million.

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, load};
use memleak_test::recent::of_all_ages;
use memleak_test::report::Amount;
use serde_json::Value;

const BLOCK_BYTES: u64 = 24;

/// Every block of millions is counted while it lives, and its free is matched: what is left is exact, nothing
/// is lost.
#[test]
fn millions_of_blocks() {
    let blocks: u64 = load(1_500_000, 20_000_000);
    let path = compile(&directory("capacity-many"), "amounts/many_blocks.c", &["-O2"]);
    let mut program = Program::start(&path, &[&blocks.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(
        program.pid(),
        &["--max-blocks", &(blocks + 1).to_string()],
        &["1"],
    );
    program.step("held");
    let all = Amount {
        bytes: blocks * BLOCK_BYTES,
        blocks,
    };
    // Wait for a report that was begun after the program had all blocks.
    let full = loop {
        let report = memleak.report();
        assert!(report.outstanding().blocks <= blocks, "{report}");
        if report.outstanding().blocks == blocks {
            break report;
        }
    };
    assert_eq!(full.only_through("hold").outstanding, all, "{full}");
    assert_eq!(full.lost.blocks, 0, "{full}");
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    let left = blocks / 1000;
    let stack = report.only_through("hold");
    assert_eq!(
        (stack.allocated, stack.outstanding),
        (
            all,
            Amount {
                bytes: left * BLOCK_BYTES,
                blocks: left
            }
        ),
        "{report}"
    );
    assert_eq!(
        (report.lost.blocks, report.events.unknown_frees),
        (0, 0),
        "{report}"
    );
}

/// Blocks that compete for places among the young are moved to the table, freed and allocated again meanwhile
/// by other threads, more of them than processors: each is accounted for once, wherever it is. With room for
/// 4096 blocks there are 128 places, and 3000 live blocks.
#[test]
fn blocks_that_move_are_accounted_for_once() {
    const THREADS: u64 = 16;
    const CELLS: u64 = 3000;
    let rounds: u64 = load(40_000, 1_000_000);
    let path = compile(
        &directory("capacity-exchange"),
        "load/exchange.c",
        &["-O2", "-pthread"],
    );
    let arguments = [THREADS, rounds, CELLS].map(|number| number.to_string());
    let mut program = Program::start(&path, &arguments.each_ref().map(String::as_str));
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["-o", "0", "--max-blocks", "4096"]);
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    let outstanding = Amount {
        bytes: (0..CELLS).map(|cell| 16 * (1 + cell % 4)).sum(),
        blocks: CELLS,
    };
    let by_age = of_all_ages(&report.recent.ages);
    assert_eq!(
        (report.outstanding(), by_age),
        (outstanding, outstanding),
        "{report}"
    );
    assert_eq!(report.events.allocations, THREADS * rounds + CELLS, "{report}");
    assert_eq!(
        (
            report.lost.blocks,
            report.events.unknown_frees,
            report.events.missed_frees
        ),
        (0, 0, 0),
        "{report}"
    );
}

/// Blocks beyond a full table are lost at the stack that allocated them, and old ones are as they were.
#[test]
fn full_block_table_counts_losses_by_stack() {
    const ROOM: u64 = 1000;
    let path = compile(&directory("capacity-full"), "amounts/many_blocks.c", &["-O2"]);
    let mut program = Program::start(&path, &["50000"]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--max-blocks", &ROOM.to_string()]);
    program.step("held");
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    let stack = report.only_through("hold");
    let amount = |blocks| Amount {
        bytes: blocks * BLOCK_BYTES,
        blocks,
    };
    assert_eq!(
        (stack.allocated, stack.lost),
        (amount(ROOM), amount(50_000 - ROOM)),
        "{report}"
    );
    // The last allocated are freed first; those that fitted are the first 1000, of which one is kept.
    assert_eq!(stack.outstanding, amount(1), "{report}");
    assert_eq!(report.events.unknown_frees, 49_950 - (ROOM - 1), "{report}");
}

/// Distinct stacks, 8192 of them, are neither lost nor taken for one another with the default settings.
#[test]
fn thousands_of_stacks() {
    const BITS: usize = 13;
    let path = compile(&directory("capacity-stacks"), "stacks/paths.c", &["-O2"]);
    let mut program = Program::start(&path, &[&BITS.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    report.check_sums();
    assert_eq!(report.lost.blocks, 0);
    let mut seen = vec![false; 1 << BITS];
    for stack in &report.stacks {
        assert_eq!(
            (stack.end.as_str(), stack.outstanding.blocks),
            ("complete", 1),
            "{stack}"
        );
        let path = usize::try_from(stack.outstanding.bytes - 1).expect("it is small");
        let names = stack.names();
        let outermost_first = names.iter().rev();
        let turns: Vec<_> = outermost_first
            .skip_while(|&&name| name != "main")
            .skip(1)
            .collect();
        let found = turns.iter().enumerate().fold(0, |path, (bit, name)| {
            path | usize::from(***name == *"right") << bit
        });
        assert_eq!((turns.len(), found), (BITS, path), "{stack}");
        assert!(!std::mem::replace(&mut seen[path], true), "{stack}");
    }
    assert_eq!(seen.iter().filter(|&&seen| !seen).count(), 0);
}

/// Calls that are traced one by one while the reader does not read are left out beyond the queue's capacity.
/// Each is counted, and accounted for like any other.
#[test]
fn calls_beyond_the_queue_are_counted() {
    const BLOCKS: u64 = 150_000;
    let path = compile(&directory("capacity-calls"), "amounts/many_blocks.c", &["-O2"]);
    let mut program = Program::start(&path, &[&BLOCKS.to_string()]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--format", "json", "--trace"]);
    memleak.signal("STOP");
    program.step("held");
    memleak.signal("CONT");
    let text = memleak.finish_text();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (report, calls) = lines.split_last().expect("a report");
    let traced = u64::try_from(calls.len()).expect("not that many");
    let of_hold = |call: &Value| {
        let caller = call["caller"].as_str().unwrap_or_default();
        call["event"] == "allocation" && call["bytes"] == BLOCK_BYTES && caller.starts_with("hold+0x")
    };
    assert!(calls.iter().all(of_hold), "{}", calls[0]);
    assert!(traced > BLOCKS / 2, "{traced} were told");
    assert_eq!(report["lost"]["calls"], BLOCKS - traced);
    assert_eq!(report["outstanding"]["blocks"], BLOCKS);
}
