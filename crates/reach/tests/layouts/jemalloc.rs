//! jemalloc: sums are those of its statistics, and a purge gives back what is said to be trimmable.

use std::collections::BTreeMap;
use std::path::Path;

use memleak_reach::free::Allocator;
use memleak_reach::layout::{Layout, Usage};
use memleak_test::program::{LIBRARIES, stock};

use super::{Reading, Subject, bytes_of, check_near, compiled};

/// Starts the program with jemalloc.
#[track_caller]
fn start(path: &Path, arguments: &[&str]) -> Subject {
    let library = stock(&format!("{LIBRARIES}/libjemalloc.so.2"), "libjemalloc2");
    let library = library.to_str().expect("a plain path");
    Subject::start(path, arguments, &[("LD_PRELOAD", library)])
}

/// The layout of jemalloc. The C library may have an arena, too, which is hardly used.
#[track_caller]
fn of_jemalloc(reading: &Reading) -> &Layout {
    let mut layouts = reading.layouts.iter();
    layouts
        .find(|layout| layout.allocator == Allocator::Jemalloc)
        .expect("jemalloc")
}

/// Blocks, slabs and dirty pages are as many as jemalloc counts, in all and by size.
#[test]
fn sums_of_mallctl() {
    let path = compiled("gcc", "jemalloc-sums", &["-pthread", "-O1"]);
    for arguments in [&["row"][..], &["mixed", "0"], &["mixed", "5"]] {
        let subject = start(&path, arguments);
        let reading = subject.read();
        let layout = of_jemalloc(&reading);
        assert_eq!(layout.refused, 0);
        let sums = bytes_of(layout);
        let (found, _) = reading.measure(layout);
        note!("{arguments:?}: {sums:?} {:?}", found.total());
        let (mut in_slabs, mut in_slabs_free, mut large) = (0, 0, 0);
        layout.pieces.visit(&mut |piece| {
            let bytes = piece.range.end - piece.range.start;
            match piece.usage {
                Usage::Free if piece.slab.is_some() => {
                    in_slabs += bytes;
                    in_slabs_free += bytes;
                }
                _ if piece.slab.is_some() => in_slabs += bytes,
                Usage::Block { .. } | Usage::Cached => large += bytes,
                Usage::Own if piece.arena.is_some() => large += bytes,
                Usage::Own | Usage::Free | Usage::Top | Usage::Unjoined | Usage::Unknown => {}
            }
        });
        check_near("active", in_slabs + large, subject.told("active"), 0);
        // jemalloc's size of a large block lacks the page that lets it begin anywhere in its first page.
        let allocated = sums.blocks + sums.cached + sums.own;
        check_near("allocated", allocated, subject.told("allocated"), 20);
        let (dirty, muzzy) = (subject.told("dirty"), subject.told("muzzy"));
        let free = dirty + muzzy + subject.told("retained");
        check_near("dirty, muzzy and retained", sums.free - in_slabs_free, free, 0);
        // Pages that the program has never touched, behind large blocks, count there, but are not held.
        let total = found.total();
        assert!(total.trimmable <= dirty + muzzy, "{total:?}");
        let held = total.held - found.separate.own;
        let most = subject.told("active") + dirty + muzzy;
        assert!(held <= most && held * 10 >= most * 9, "{held} of {most}");
        for (size, class) in &found.classes {
            assert_eq!(class.slabs, subject.told(&format!("slabs_of_{size}")), "{size}");
        }
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        layout.pieces.visit(&mut |piece| {
            if let (Some(slab), Usage::Block { .. } | Usage::Cached | Usage::Own) = (piece.slab, piece.usage)
            {
                *used.entry(slab.block).or_default() += 1;
            }
        });
        for (size, blocks) in used {
            assert_eq!(blocks, subject.told(&format!("blocks_of_{size}")), "{size}");
        }
    }
}

/// A purge makes the process hold less memory by the sum that was computed before.
#[test]
fn purge_gives_back_what_is_trimmable() {
    let path = compiled("gcc", "jemalloc-purge", &["-pthread", "-O1"]);
    for arguments in [&["row"][..], &["mixed", "0"], &["mixed", "5"]] {
        let mut subject = start(&path, arguments);
        let reading = subject.read();
        let (found, _) = reading.measure(of_jemalloc(&reading));
        let given = subject.given_back();
        check_near(
            &format!("{arguments:?} given back"),
            found.total().trimmable,
            given,
            20,
        );
    }
}

/// Each 32nd block of a row is kept, and pins its slab.
#[test]
fn a_row_of_blocks() {
    let path = compiled("gcc", "jemalloc-row", &["-pthread", "-O1"]);
    let subject = start(&path, &["row"]);
    let reading = subject.read();
    let (found, blocks) = reading.measure(of_jemalloc(&reading));
    let keepers: Vec<_> = blocks.iter().filter(|block| block.bytes == 1024).collect();
    assert!(keepers.len() >= 500, "{}", keepers.len());
    // Slabs have four regions; the last freed blocks are in the thread's cache.
    let pinned: u64 = keepers.iter().map(|block| block.pinned).sum();
    check_near("pinned", pinned, 500 * 3 * 1024, 20);
    let class = found.classes[&1024];
    assert_eq!(class.block_count, keepers.len() as u64);
}
