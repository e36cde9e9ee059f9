//! musl: pieces fill the groups, and freed blocks stay because of blocks of the same groups.

use memleak_reach::free::Allocator;

use super::{Subject, bytes_of, check_near, compiled};

/// All memory of the groups is in pieces, nothing is trimmable, and what the program has kept is in blocks.
#[test]
fn groups_are_whole() {
    let path = compiled("musl-gcc", "musl-whole", &["-O1"]);
    for arguments in [&["row"][..], &["mixed", "0"], &["mixed", "3"]] {
        let subject = Subject::start(&path, arguments, &[]);
        let reading = subject.read();
        let [layout] = &reading.layouts[..] else {
            panic!("one allocator");
        };
        assert_eq!((layout.allocator, layout.refused), (Allocator::Musl, 0));
        let sums = bytes_of(layout);
        note!("{arguments:?}: {sums:?}");
        let ranges = layout.arenas.iter().flat_map(|arena| &arena.ranges);
        let ranges: u64 = ranges.map(|range| range.end - range.start).sum();
        let all = sums.blocks + sums.cached + sums.free + sums.own + sums.unknown;
        check_near("ranges", all, ranges, 0);
        let (found, _) = reading.measure(layout);
        let total = found.total();
        assert_eq!((total.trimmable, sums.unknown), (0, 0));
        assert!(total.pinned > 1 << 20, "{total:?}");
    }
}

/// Each 32nd block of a row is kept: one in each group of up to 31 slots or so, which pins the rest of it.
#[test]
fn a_row_of_blocks() {
    let path = compiled("musl-gcc", "musl-row", &["-O1"]);
    let subject = Subject::start(&path, &["row"], &[]);
    let reading = subject.read();
    let (found, blocks) = reading.measure(&reading.layouts[0]);
    let keepers = blocks.iter().filter(|block| block.pinned > 0).count();
    let total = found.total();
    note!("{total:?}, {keepers} keepers of {}", blocks.len());
    assert!(keepers >= 490);
    // Groups of this size have 16 slots or less, so that about half of them are empty, and were given back.
    assert!(total.pinned > 500 * 6 * 1000, "{total:?}");
}
