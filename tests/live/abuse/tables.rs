//! Full tables: what does not fit is counted, and the rest is right.

use super::{MIB, finish_within};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};

/// Maximum memory, in bytes, that a report keeps for one frame of one stack while it is made.
const FRAME: u64 = 400;

/// Many different stacks, 131,072 with `MEMLEAK_FULL_LOAD=1`, with room for all of them, and with room for
/// few. Each block is shown at its own stack, or at one that says that there was no room; none is lost.
#[test]
fn tens_of_thousands_of_stacks() {
    let bits = if std::env::var_os("MEMLEAK_FULL_LOAD").is_some() {
        17
    } else {
        14
    };
    let stacks = 1_u64 << bits;
    let path = compile(&directory("abuse-stacks"), "stacks/paths.c", &["-O2"]);
    for room in [None, Some(1000)] {
        let mut program = Program::start(&path, &[&bits.to_string()]);
        program.expect("ready");
        let size = room.unwrap_or(2 * stacks).to_string();
        let memleak = Memleak::attach(program.pid(), &["--stack-storage-size", &size]);
        program.step("done");
        // Outside the recursion are main and its callers.
        let frames = room.unwrap_or(stacks) * (bits + 4);
        let abuse = format!("{stacks} stacks, room for {size}");
        let report = finish_within(&abuse, memleak, (160 * MIB + frames * FRAME, 60.0));
        let with_room = report
            .stacks
            .iter()
            .filter(|stack| stack.end != "stack_table_full");
        let (shown, of_their_own) = with_room.fold((0, 0), |(stacks, blocks), stack| {
            (stacks + 1, blocks + stack.outstanding.blocks)
        });
        let of_none = report.unwinding.allocations.get("stack_table_full");
        let of_none = of_none.copied().unwrap_or(0);
        assert_eq!(of_their_own + of_none + report.lost.blocks, stacks, "{abuse}");
        match room {
            None => assert_eq!((shown, of_none), (stacks, 0)),
            Some(room) => assert!(shown <= room && shown * 10 > room * 9, "{shown} of {room}"),
        }
        assert_eq!(report.events.allocations, stacks);
    }
}

/// With the minimum size of everything at once, every allocation is shown or counted as lost.
#[test]
fn smallest_tables_lose_nothing_uncounted() {
    let path = compile(&directory("abuse-least"), "amounts/many_blocks.c", &["-O2"]);
    let mut program = Program::start(&path, &["20000"]);
    program.expect("ready");
    let minimum = [
        "--max-blocks",
        "1",
        "--stack-storage-size",
        "1",
        "--table-memory",
        "64K",
    ];
    let memleak = Memleak::attach(program.pid(), &minimum);
    program.step("held");
    program.step("done");
    let report = finish_within("the least of everything", memleak, (160 * MIB, 30.0));
    assert_eq!(report.allocated().blocks + report.lost.blocks, 20_000, "{report}");
    assert!(report.lost.blocks > 19_000, "{report}");
}
