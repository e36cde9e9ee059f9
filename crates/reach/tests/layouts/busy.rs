//! Programs whose threads allocate all the time are read without stopping them: nearly all of their memory is
//! understood, and what is not counts as unknown.

use memleak_reach::layout::Layout;
use memleak_test::program::{LIBRARIES, stock};

use super::{Subject, bytes_of, compiled};

/// Number of readings of each program.
const READINGS: usize = 10;

fn mapped(layout: &Layout) -> u64 {
    let ranges = layout.arenas.iter().flat_map(|arena| &arena.ranges);
    ranges.map(|range| range.end - range.start).sum()
}

/// Pieces fill the arenas, also of memory that changes, and few bytes of all readings together are unknown.
#[test]
fn busy_programs() {
    let library = stock(&format!("{LIBRARIES}/libjemalloc.so.2"), "libjemalloc2");
    let library = library.to_str().expect("a plain path");
    for (compiler, name, environment) in [
        ("gcc", "busy-glibc", &[][..]),
        ("gcc", "busy-jemalloc", &[("LD_PRELOAD", library)]),
        ("musl-gcc", "busy-musl", &[]),
    ] {
        let path = compiled(compiler, name, &["-pthread", "-O1"]);
        let subject = Subject::start(&path, &["busy", "3"], environment);
        let (mut all, mut unknown, mut refused) = (0, 0, 0);
        for _ in 0..READINGS {
            // The allocator's state may lead to a page that was not there when pages were looked for.
            let mut readings = (0..READINGS).map(|_| subject.read());
            let reading = readings.find(|reading| !reading.layouts.is_empty());
            let reading = reading.expect("an allocator");
            let layouts = reading.layouts.iter();
            let layout = layouts.max_by_key(|layout| mapped(layout)).expect("an allocator");
            let sums = bytes_of(layout);
            let in_pieces = sums.blocks + sums.cached + sums.unjoined + sums.free + sums.top + sums.own;
            let (found, blocks) = reading.measure(layout);
            assert!(
                found.total().held > 10 << 20 && blocks.len() > 30_000,
                "{name}: {sums:?}"
            );
            assert!(in_pieces + sums.unknown <= mapped(layout), "{name}: {sums:?}");
            all += mapped(layout);
            unknown += mapped(layout) - in_pieces;
            refused += layout.refused;
        }
        note!("{name}: of {all} bytes, {unknown} are unknown; {refused} records refused");
        // Of musl's slots, those that are taken or freed between two reads are unclear.
        assert!(unknown * 8 <= all, "{name}: {unknown} of {all}");
    }
}
