//! glibc: sums are those of `mallinfo2`, and `malloc_trim` gives back what is said to be trimmable.

use memleak_reach::free::Allocator;
use memleak_reach::layout::Usage;
use memleak_test::program::of_next_release;

use super::{Subject, bytes_of, check_near, compiled};

/// Work of the program: in the main arena alone, in several arenas, and where the heap segment cannot grow.
/// All but the first has blocks with mappings of their own.
const WORK: [&[&str]; 4] = [
    &["row"],
    &["mixed", "0"],
    &["mixed", "5"],
    &["mixed", "2", "wall"],
];

/// Checks that chunks of all usages have the sizes that glibc counts, to the byte.
#[track_caller]
fn check_sums(subject: &Subject, arguments: &[&str]) {
    let reading = subject.read();
    let [layout] = &reading.layouts[..] else {
        panic!("one allocator");
    };
    assert_eq!((layout.allocator, layout.refused), (Allocator::Glibc, 0));
    let (sums, unknown) = (bytes_of(layout), layout.unknown);
    note!("{arguments:?}: {sums:?}, unknown {unknown}, {:?}", subject.told);
    let used = sums.blocks + sums.cached + sums.own;
    let free = sums.free + sums.unjoined + sums.top;
    if unknown > 0 {
        // Nothing leads to some of the mappings that the main arena takes where its heap segment cannot grow.
        assert!(arguments.contains(&"wall"), "{arguments:?}: {unknown}");
        check_near("arena", used + free + unknown, subject.told("arena"), 0);
        return;
    }
    check_near("arena", used + free, subject.told("arena"), 0);
    check_near("fordblks", free, subject.told("fordblks"), 0);
    check_near("uordblks", used, subject.told("uordblks"), 0);
    check_near("fsmblks", sums.unjoined, subject.told("fsmblks"), 0);
    check_near("hblkhd", sums.separate, subject.told("hblkhd"), 0);
    let ranges = layout.arenas.iter().flat_map(|arena| &arena.ranges);
    let ranges: u64 = ranges.map(|range| range.end - range.start).sum();
    check_near("ranges", ranges, subject.told("arena"), 0);
}

/// Sums are those of this system's C library.
#[test]
fn sums_of_mallinfo() {
    let path = compiled("gcc", "glibc-sums", &["-pthread", "-O1"]);
    for arguments in WORK {
        check_sums(&Subject::start(&path, arguments, &[]), arguments);
    }
}

/// Sums are those of the C library of Debian's next release, too, 2.43 or newer, which has no lists of small
/// chunks, and whose call gives back as much as was computed.
#[test]
fn next_c_library() {
    let path = compiled("gcc", "glibc-next", &["-pthread", "-O1"]);
    for arguments in WORK {
        let mut subject = Subject::spawn(of_next_release(&path).args(arguments));
        check_sums(&subject, arguments);
        check_trim(&mut subject, arguments);
    }
}

/// Value of an attribute in a line of `malloc_info`.
fn attribute(line: &str, name: &str) -> Option<u64> {
    let (_, after) = line.split_once(&format!("{name}=\""))?;
    after.split('"').next()?.parse().ok()
}

/// Each arena has the number that `malloc_info` gives it, and as much memory, and as much that is free.
#[test]
fn arenas_of_malloc_info() {
    let path = compiled("gcc", "glibc-arenas", &["-pthread", "-O1"]);
    let subject = Subject::start(&path, &["mixed", "3"], &[]);
    let reading = subject.read();
    let layout = &reading.layouts[0];
    let mut ours = vec![(0, 0); layout.arenas.len()];
    layout.pieces.visit(&mut |piece| {
        if let Some(arena) = piece.arena {
            let bytes = piece.range.end - piece.range.start;
            ours[arena].0 += bytes;
            let is_free = piece.usage.is_free() || piece.usage == Usage::Unjoined;
            ours[arena].1 += if is_free { bytes } else { 0 };
        }
    });
    let mut theirs = Vec::new();
    for line in &subject.lines {
        if let Some(number) = attribute(line, "<heap nr") {
            assert_eq!(number, theirs.len() as u64);
            theirs.push((0, 0));
        }
        // What comes behind all heaps is their sum.
        let is_sum = theirs.len() == layout.arenas.len() && theirs.last().is_some_and(|last| last.0 > 0);
        let Some(last) = theirs.last_mut().filter(|_| !is_sum) else {
            continue;
        };
        let size = attribute(line, "size").unwrap_or(0);
        if line.starts_with("<system type=\"current\"") {
            last.0 = size;
        } else if line.starts_with("<total type=\"fast\"") {
            last.1 += size;
        } else if line.starts_with("<total type=\"rest\"") {
            // glibc 2.36 adds a flag to the size of each free chunk but the top (`PREV_INUSE`).
            last.1 += size - (attribute(line, "count").expect("a number") - 1);
        }
    }
    assert_eq!(ours, theirs);
    let names: Vec<_> = layout.arenas.iter().map(|arena| arena.name.as_str()).collect();
    assert_eq!(names, ["main arena", "arena 1", "arena 2", "arena 3"]);
}

/// Checks that `malloc_trim` makes the process hold less memory by the sum that was computed before.
#[track_caller]
fn check_trim(subject: &mut Subject, arguments: &[&str]) {
    let reading = subject.read();
    let layout = &reading.layouts[0];
    let (found, _) = reading.measure(layout);
    note!("{arguments:?}: {:?}, unknown {}", found.total(), layout.unknown);
    let given = subject.given_back();
    assert!(given > 1 << 20);
    let thousandths = if layout.unknown > 0 { 150 } else { 20 };
    let name = format!("{arguments:?} given back");
    check_near(&name, found.total().trimmable, given, thousandths);
    let reading = subject.read();
    let (after, _) = reading.measure(&reading.layouts[0]);
    let left = after.total().trimmable;
    assert!(left * 50 <= given, "{left} of {given} are left");
}

/// The call gives back what was computed, also, if the kernel allows for it, in huge pages, of which the
/// top is given back only as a whole.
#[test]
fn trim_gives_back_what_is_trimmable() {
    let path = compiled("gcc", "glibc-trim", &["-pthread", "-O1"]);
    for arguments in WORK {
        check_trim(&mut Subject::start(&path, arguments, &[]), arguments);
    }
    let in_huge_pages = [("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")];
    check_trim(&mut Subject::start(&path, WORK[0], &in_huge_pages), WORK[0]);
}

/// 500 blocks of 1000 bytes pin nearly all of the 15.4 MiB of those that were freed between them.
#[test]
fn a_row_of_blocks() {
    let path = compiled("gcc", "glibc-row", &["-pthread", "-O1"]);
    let subject = Subject::start(&path, &["row"], &[]);
    let reading = subject.read();
    let (found, blocks) = reading.measure(&reading.layouts[0]);
    let freed = 15_500 * 1008;
    let sums = found.total();
    note!("{sums:?}");
    check_near("pinned", sums.pinned, freed, 10);
    let keepers = blocks
        .iter()
        .filter(|block| block.bytes == 1008 && block.pinned > 0);
    let by_keepers: u64 = keepers.clone().map(|block| block.pinned).sum();
    assert!(keepers.count() >= 499);
    check_near("pinned by the blocks", by_keepers, freed, 10);
    assert_eq!(found.arenas_with_free().count(), 1);
}
