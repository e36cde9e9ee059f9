use proptest::prelude::*;

use super::*;
use memleak_process::maps;

const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 rw-s 00000000 00:01 7 /memfd:shared (deleted)
4000-5000 rw-p 00000000 fe:01 9 /lib/data
5000-6000 rw-p 00000000 00:00 0   [heap]
6000-7000 rw-p 00000000 00:00 0   [stack]
7000-8000 rw-p 00000000 00:00 0   [anon:arena]
";

fn dated(start: u64, end: u64, at: u64) -> Dated {
    Dated {
        range: Avma::new(start)..Avma::new(end),
        at,
        by_allocator: false,
    }
}

fn block(address: u64, size: u64, allocated_at: u64) -> Block {
    Block {
        address: Avma::new(address),
        size,
        allocated_at,
        stack: 0,
    }
}

const BEGAN: u64 = 1000;
const PRECISION: u64 = 10;

fn freed(notes: &Notes, blocks: &[Block]) -> Freed {
    let maps: Vec<_> = maps::parse(MAPS.as_bytes()).filter_map(Result::ok).collect();
    find(notes, blocks, &maps, BEGAN, Duration::from_nanos(PRECISION))
}

fn plain(ranges: &[Range<Avma>]) -> Vec<(u64, u64)> {
    let plain = |range: &Range<Avma>| (range.start.get(), range.end.get());
    ranges.iter().map(plain).collect()
}

fn found(notes: &Notes, blocks: &[Block]) -> Vec<(u64, u64)> {
    plain(&freed(notes, blocks).unused)
}

fn notes(freed: &[Dated], taken: &[Dated]) -> Notes {
    Notes {
        freed: freed.to_vec(),
        taken: taken.to_vec(),
        void_before: Some(0),
        ..Notes::default()
    }
}

/// Memory is unused where it is mapped by calls that are noted, and was not mapped again since it was freed.
#[test]
fn mapped_again() {
    let freed = [dated(0x1000, 0x1100, 50), dated(0x1100, 0x1200, 60)];
    assert_eq!(found(&notes(&freed, &[]), &[]), [(0x1000, 0x1200)]);
    let older = dated(0x0, 0x3000, 49);
    assert_eq!(
        found(&notes(&freed, std::slice::from_ref(&older)), &[]),
        [(0x1000, 0x1200)]
    );
    let between = dated(0x1080, 0x3000, 55);
    assert_eq!(
        found(&notes(&freed, &[older, between]), &[]),
        [(0x1000, 0x1080), (0x1100, 0x1200)]
    );
    // At the same time, and so perhaps later.
    assert_eq!(found(&notes(&freed, &[dated(0x0, 0x2000, 60)]), &[]), []);
    let everywhere = [dated(0x0, 0x9000, 50)];
    assert_eq!(
        found(&notes(&everywhere, &[]), &[]),
        [(0x1000, 0x3000), (0x5000, 0x6000), (0x7000, 0x8000)]
    );
}

/// A block is in use whenever it was allocated; memory behind its requested size is if it was free before the
/// allocation.
#[test]
fn blocks_in_use() {
    let freed = [dated(0x1000, 0x1100, 50), dated(0x1100, 0x1200, 500)];
    let one = |address, size, at| found(&notes(&freed, &[]), &[block(address, size, at)]);
    assert_eq!(one(0x1000, 0x80, 20), [(0x1080, 0x1200)]);
    // 0x79 bytes are in a class of 0x80, and there may be more.
    assert_eq!(one(0x1000, 0x79, 100), [(0x1090, 0x1200)]);
    assert_eq!(one(0x1080, 0x79, 100), [(0x1000, 0x1080), (0x1100, 0x1200)]);
    assert_eq!(one(0x1080, 0x80, 45), [(0x1000, 0x1080), (0x1100, 0x1200)]);
    // The block can be younger than its time says, by `PRECISION`.
    assert_eq!(one(0x1080, 0x80, 495), [(0x1000, 0x1080), (0x1110, 0x1200)]);
    // Blocks can overlap, like a pool and the blocks in it.
    let blocks = [block(0x1000, 0x1f0, 20), block(0x1010, 0x20, 30)];
    assert_eq!(found(&notes(&freed, &[]), &blocks), [(0x11f0, 0x1200)]);
    let huge = [block(0x1000, u64::MAX, 20)];
    assert_eq!(found(&notes(&freed, &[]), &huge), []);
}

/// Memory behind the requested size of a block belongs to the block if another block was there before and
/// none has come since.
#[test]
fn slack_of_blocks() {
    let before = [dated(0x1000, 0x1200, 50)];
    let slack = |taken: &[Dated], blocks: &[Block]| plain(&freed(&notes(&before, taken), blocks).slack);
    // 0x79 bytes are in a class of 0x80, and there may be more.
    assert_eq!(slack(&[], &[block(0x1000, 0x79, 100)]), [(0x1079, 0x1090)]);
    assert_eq!(slack(&[], &[block(0x1000, 0x79, 20)]), []);
    assert_eq!(slack(&[], &[block(0x11f0, 0x9, 100)]), [(0x11f9, 0x1200)]);
    assert_eq!(slack(&[], &[block(0x1200, 0x9, 100)]), []);
    let next = block(0x1080, 0x10, 100);
    assert_eq!(
        slack(&[], &[block(0x1000, 0x79, 100), next]),
        [(0x1079, 0x1080), (0x1090, 0x10a0)]
    );
    assert_eq!(
        slack(&[dated(0x1078, 0x1080, 60)], &[block(0x1000, 0x79, 100)]),
        []
    );
    // An allocator's own memory, which nothing else had before.
    let own = Dated {
        by_allocator: true,
        ..dated(0x2000, 0x3000, 70)
    };
    assert_eq!(slack(&[own], &[block(0x2000, 0x79, 100)]), [(0x2079, 0x2090)]);
}

/// Memory that was freed during the verdict was in use at an earlier pass; memory that was freed before a
/// doubt may be in use.
#[test]
fn times_of_frees() {
    let of = |void_before, freed: &[Dated]| {
        let notes = Notes {
            void_before,
            ..notes(freed, &[])
        };
        found(&notes, &[])
    };
    let freed = [
        dated(0x1000, 0x1100, 50),
        dated(0x1080, 0x1100, BEGAN),
        dated(0x1200, 0x1300, BEGAN - 1),
    ];
    assert_eq!(of(Some(0), &freed), [(0x1000, 0x1080), (0x1200, 0x1300)]);
    assert_eq!(of(Some(50), &freed), [(0x1200, 0x1300)]);
    assert_eq!(of(None, &freed), []);
}

/// In memory that an allocator took for itself, only blocks are in use, and memory that may have been at an
/// earlier pass.
#[test]
fn memory_of_the_allocator() {
    let own = Dated {
        by_allocator: true,
        ..dated(0x1000, 0x2000, 100)
    };
    let blocks = [block(0x1100, 0x79, 200), block(0x1800, 0, 300)];
    let of = |freed: &[Dated], taken: &[Dated]| found(&notes(freed, taken), &blocks);
    let all = [(0x1000, 0x1100), (0x1190, 0x1800), (0x1820, 0x2000)];
    assert_eq!(of(&[], std::slice::from_ref(&own)), all);
    // Freed long ago, and since the first pass.
    assert_eq!(of(&[dated(0x1100, 0x1200, 150)], std::slice::from_ref(&own)), all);
    assert_eq!(
        of(&[dated(0x1f00, 0x2100, BEGAN + 1)], std::slice::from_ref(&own)),
        [all[0], all[1], (0x1820, 0x1f00)]
    );
    // Taken by anything since.
    let others = [own.clone(), dated(0x1400, 0x3000, 400)];
    assert_eq!(of(&[], &others), [all[0], (0x1190, 0x1400)]);
    let in_doubt = |void_before, not_noted| Notes {
        void_before: Some(void_before),
        not_noted,
        ..notes(&[], std::slice::from_ref(&own))
    };
    assert_eq!(found(&in_doubt(99, 0), &blocks), all);
    assert_eq!(found(&in_doubt(100, 0), &blocks), []);
    assert_eq!(found(&in_doubt(99, 1), &blocks), []);
}

/// Largest end of the ranges of the test below.
const ENDS: u64 = 40;

proptest! {
    /// Each address has the latest time of the ranges with this address.
    #[test]
    fn address_by_address(ranges in prop::collection::vec((0..ENDS, 0..ENDS, 0_u64..9), 0..12)) {
        let ranges: Vec<_> = ranges.iter().map(|&(start, end, at)| dated(start, end, at)).collect();
        let at = |ranges: &[Dated], address| {
            let here = ranges.iter().filter(|dated| dated.range.contains(&Avma::new(address)));
            here.map(|dated| dated.at).max()
        };
        let pieces = latest(ranges.clone());
        prop_assert!(pieces.is_sorted_by(|one, next| one.range.end <= next.range.start));
        prop_assert!(pieces.iter().all(|piece| !piece.range.is_empty()));
        for address in 0..ENDS {
            prop_assert_eq!(at(&ranges, address), at(&pieces, address));
        }
    }
}
