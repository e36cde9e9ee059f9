use std::ops::Range;

use proptest::prelude::*;
use unwind_tables::addr::Avma;

use super::{Fragmentation, LEAST_RETURNED, Pinning, Sums, measure};
use crate::free::Allocator;
use crate::layout::{Arena, Division, Layout, Piece, Pieces, Slab, Usage};

const PAGE: u64 = 4096;
const HEAP: u64 = 0x5555_0000_0000;

struct Made(Vec<Piece>);

impl Pieces for Made {
    fn visit(&self, see: &mut dyn FnMut(&Piece)) {
        self.0.iter().for_each(see);
    }
}

/// A layout of two arenas, of which the first gives its top back.
fn layout(division: Division, pieces: Vec<Piece>) -> Layout {
    let arena = |name: &str, gives_top| Arena {
        name: name.to_owned(),
        ranges: Vec::new(),
        gives_top,
    };
    Layout {
        allocator: Allocator::Glibc,
        division,
        arenas: vec![arena("main arena", Some(PAGE)), arena("arena 1", None)],
        unknown: 0,
        refused: 0,
        pieces: Box::new(Made(pieces)),
    }
}

/// Block whose address is that of its first byte.
const BLOCK: Usage = Usage::Block { address: 0 };

/// Consecutive pieces from `at` on, each with its size.
fn consecutive(arena: usize, at: u64, sizes: &[(u64, Usage)]) -> Vec<Piece> {
    let mut next = at;
    let piece = |&(size, usage): &(u64, Usage)| {
        let start = next;
        next += size;
        let usage = if usage == BLOCK {
            Usage::Block { address: start }
        } else {
            usage
        };
        Piece {
            range: start..start + size,
            usage,
            arena: Some(arena),
            slab: None,
        }
    };
    sizes.iter().map(piece).collect()
}

/// Measures, and checks what holds for all sums.
#[track_caller]
fn measured(layout: &Layout, held: &[Range<u64>]) -> (Fragmentation, Vec<Pinning>) {
    let held: Vec<_> = held
        .iter()
        .map(|run| Avma::new(run.start)..Avma::new(run.end))
        .collect();
    let mut blocks = Vec::new();
    let found = measure(layout, &held, &mut |block| blocks.push(*block));
    for sums in found.arenas.iter().chain([&found.separate]) {
        let Sums {
            blocks,
            cached,
            own,
            unknown,
            ..
        } = sums;
        assert_eq!(
            sums.held,
            blocks + cached + own + unknown + sums.between + sums.whole
        );
        assert_eq!(sums.pinned + sums.kept, cached + sums.free());
        assert!(sums.held <= sums.mapped && sums.trimmable <= sums.free() + cached);
    }
    let total = found.total();
    assert_eq!(total.block_count, blocks.len() as u64);
    let charged: u64 = blocks.iter().map(|block| block.pinned).sum();
    assert_eq!(charged + total.pinned_by_own, total.pinned);
    (found, blocks)
}

fn up_to(end: u64) -> Vec<Range<u64>> {
    std::iter::once(HEAP..end).collect()
}

fn pins(blocks: &[Pinning]) -> Vec<u64> {
    blocks.iter().map(|block| block.pinned).collect()
}

/// Nothing has no fragmentation.
#[test]
fn empty() {
    let (found, blocks) = measured(&layout(Division::Chunks, Vec::new()), &[]);
    assert_eq!(found.total(), Sums::default());
    assert_eq!(found.arenas_with_free().count() + blocks.len(), 0);
}

/// The blocks that are left of many in a row pin nearly all that was freed, each about the same.
#[test]
fn each_32nd_of_a_row() {
    let sizes: Vec<_> = (0..16_000_u64)
        .map(|number| (1008, if number % 32 == 0 { BLOCK } else { Usage::Free }))
        .chain([(PAGE, Usage::Top)])
        .collect();
    let end = HEAP + 16_000 * 1008 + PAGE;
    let (found, blocks) = measured(
        &layout(Division::Chunks, consecutive(0, HEAP, &sizes)),
        &up_to(end),
    );
    assert_eq!(blocks.len(), 500);
    let freed = 15_500 * 1008;
    let sums = found.arenas[0];
    assert_eq!(sums.free(), freed + PAGE);
    // All but the end of the last run of free chunks, which the top continues.
    assert!(sums.pinned > freed - 32 * 1008 && sums.pinned <= freed);
    let inner = &pins(&blocks)[1..499];
    assert!(inner.iter().all(|pinned| *pinned == 31 * 1008), "{inner:?}");
    // The call gives back the 6 or 7 whole pages between two blocks: that is why they are still pinned
    // memory.
    assert!(sums.trimmable > freed / 32 * 25);
}

/// A long run is not pinned, but for the parts of pages that its neighbours are on; and what was never
/// touched is not there.
#[test]
fn long_runs_and_pages_never_touched() {
    let long = LEAST_RETURNED + 2 * PAGE;
    let sizes = [(100, BLOCK), (long, Usage::Free), (200, BLOCK)];
    let pieces = || consecutive(0, HEAP, &sizes);
    let end = HEAP + 100 + long + 200;
    let all = up_to(end.next_multiple_of(PAGE));
    let (found, blocks) = measured(&layout(Division::Chunks, pieces()), &all);
    let (first, last) = (PAGE - 100, (HEAP + 100 + long) % PAGE);
    assert_eq!(pins(&blocks), [first, last]);
    let sums = found.arenas[0];
    assert_eq!((sums.pinned, sums.kept), (first + last, long - first - last));
    assert_eq!((sums.between, sums.whole), (first + last, long - first - last));
    assert_eq!(sums.trimmable, sums.whole);
    // With few of its pages held, it is a short run.
    let few = [HEAP..HEAP + PAGE, HEAP + 8 * PAGE..HEAP + 10 * PAGE];
    let (found, blocks) = measured(&layout(Division::Chunks, pieces()), &few);
    let pinned = PAGE - 100 + 2 * PAGE;
    assert_eq!(pins(&blocks), [pinned / 2, pinned / 2]);
    let sums = found.arenas[0];
    assert_eq!(
        (sums.blocks, sums.between, sums.whole),
        (100, PAGE - 100, 2 * PAGE)
    );
    assert_eq!((sums.kept, sums.trimmable), (0, 2 * PAGE));
    let (found, _) = measured(&layout(Division::Chunks, pieces()), &[]);
    assert_eq!((found.total().held, found.total().mapped), (0, long + 300));
}

/// Free memory beside the allocator's own is half its own, and beside nothing known that of the block on the
/// other side. Cached blocks within a run are a part of it.
#[test]
fn neighbours_of_runs() {
    let (free, cached, own) = ((1000, Usage::Free), (200, Usage::Cached), (600, Usage::Own));
    let block = (300, BLOCK);
    for (sizes, expected, by_own) in [
        (&[free, cached, block][..], &[1200][..], 0),
        (&[block, cached, free], &[1200], 0),
        (&[own, free, block], &[500], 500),
        (
            &[block, free, own, free, block, free, block],
            &[500, 1000, 500],
            1000,
        ),
        (
            &[block, free, (50, Usage::Unknown), free, block],
            &[1000, 1000],
            0,
        ),
        (&[own, free, own], &[], 1000),
        (&[free, cached], &[], 0),
        (&[block, block, free, block], &[0, 500, 500], 0),
    ] {
        let pieces = consecutive(1, HEAP, sizes);
        let (found, blocks) = measured(&layout(Division::Chunks, pieces), &up_to(HEAP + 2 * PAGE));
        assert_eq!(pins(&blocks), expected, "{sizes:?}");
        assert_eq!(found.arenas[1].pinned_by_own, by_own, "{sizes:?}");
    }
}

/// A run ends with its arena, and where memory is missing.
#[test]
fn two_arenas_and_memory_between() {
    let mut pieces = consecutive(0, HEAP, &[(96, BLOCK), (1000, Usage::Free)]);
    pieces.extend(consecutive(0, HEAP + PAGE, &[(1000, Usage::Free), (96, BLOCK)]));
    pieces.extend(consecutive(
        1,
        HEAP + PAGE + 1096,
        &[(1000, Usage::Free), (96, BLOCK)],
    ));
    pieces.push(Piece {
        range: HEAP + 2 * PAGE..HEAP + 4 * PAGE,
        usage: Usage::Block { address: 7 },
        arena: None,
        slab: None,
    });
    let (found, blocks) = measured(&layout(Division::Chunks, pieces), &up_to(HEAP + 3 * PAGE));
    assert_eq!(pins(&blocks), [1000, 1000, 1000, 0]);
    assert_eq!([0, 1].map(|arena| found.arenas[arena].pinned), [2000, 1000]);
    assert_eq!((found.separate.held, found.separate.mapped), (PAGE, 2 * PAGE));
    let with_free: Vec<_> = found.arenas_with_free().collect();
    assert_eq!(with_free, [(0, 2000), (1, 1000)]);
}

/// The top is given back from its end on, if the arena gives it, but for less than a page and the least size
/// of a chunk; chunks that are joined with it count with it. It pins only the rest of the page of the last
/// block.
#[test]
fn tops() {
    let sizes = [(96, BLOCK), (48, Usage::Unjoined), (10 * PAGE - 144, Usage::Top)];
    let whole = up_to(HEAP + 10 * PAGE);
    for (arena, trimmable) in [(0, 9 * PAGE), (1, 0)] {
        let (found, blocks) = measured(
            &layout(Division::Chunks, consecutive(arena, HEAP, &sizes)),
            &whole,
        );
        let sums = found.arenas[arena];
        assert_eq!((sums.trimmable, sums.whole), (trimmable, 9 * PAGE), "{arena}");
        assert_eq!((pins(&blocks), sums.cached), (vec![PAGE - 96], 48), "{arena}");
    }
    // The top's least size needs a part of the last page but one.
    let sizes = [(PAGE - 32, BLOCK), (9 * PAGE + 32, Usage::Top)];
    let (found, _) = measured(&layout(Division::Chunks, consecutive(0, HEAP, &sizes)), &whole);
    assert_eq!(found.arenas[0].trimmable, 8 * PAGE);
    let mut layout = layout(Division::Chunks, consecutive(0, HEAP, &sizes));
    layout.arenas[0].gives_top = Some(4 * PAGE);
    assert_eq!(measured(&layout, &whole).0.arenas[0].trimmable, 8 * PAGE);
    layout.arenas[0].gives_top = Some(16 * PAGE);
    assert_eq!(measured(&layout, &whole).0.arenas[0].trimmable, 0);
}

/// Whole pages behind the header of a free chunk are given back. Chunks in lists of small ones are joined
/// with their neighbours before, those in caches are not.
#[test]
fn whole_pages_in_free_chunks() {
    for (sizes, trimmable) in [
        (
            &[(PAGE - 48, BLOCK), (PAGE + 48, Usage::Free), (8, BLOCK)][..],
            PAGE,
        ),
        (
            &[(PAGE - 47, BLOCK), (2 * PAGE + 47, Usage::Free), (8, BLOCK)],
            PAGE,
        ),
        (
            &[
                (100, Usage::Unjoined),
                (2 * PAGE, Usage::Free),
                (100, Usage::Unjoined),
            ],
            PAGE,
        ),
        (
            &[
                (2 * PAGE - 500, Usage::Free),
                (64, Usage::Unjoined),
                (PAGE, Usage::Free),
            ],
            PAGE,
        ),
        (
            &[
                (2 * PAGE - 500, Usage::Free),
                (64, Usage::Cached),
                (PAGE, Usage::Free),
            ],
            0,
        ),
    ] {
        let pieces = consecutive(1, HEAP, sizes);
        let (found, _) = measured(&layout(Division::Chunks, pieces), &up_to(HEAP + 4 * PAGE));
        assert_eq!(found.arenas[1].trimmable, trimmable, "{sizes:?}");
    }
}

/// Memory behind the top is another part of the arena, which is adjacent by chance.
#[test]
fn memory_behind_the_top() {
    let sizes = [
        (96, BLOCK),
        (2 * PAGE - 96, Usage::Top),
        (2 * PAGE - 96, Usage::Free),
        (96, BLOCK),
    ];
    for (arena, of_top) in [(0, PAGE), (1, 0)] {
        let pieces = consecutive(arena, HEAP, &sizes);
        let (found, blocks) = measured(&layout(Division::Chunks, pieces), &up_to(HEAP + 4 * PAGE));
        assert_eq!(pins(&blocks), [PAGE - 96, 2 * PAGE - 96], "{arena}");
        // The free chunk's header is on its first page.
        assert_eq!(found.arenas[arena].trimmable, of_top, "{arena}");
    }
    let mut larger = sizes;
    larger[2].0 += PAGE;
    let pieces = consecutive(1, HEAP, &larger);
    let (found, _) = measured(&layout(Division::Chunks, pieces), &up_to(HEAP + 5 * PAGE));
    assert_eq!(found.arenas[1].trimmable, PAGE);
}

fn slab(start: u64, block: u64, uses: &[Usage]) -> Vec<Piece> {
    let slab = Slab {
        start,
        bytes: block * uses.len() as u64,
        block,
    };
    let sizes: Vec<_> = uses.iter().map(|usage| (block, *usage)).collect();
    let mut pieces = consecutive(0, start, &sizes);
    pieces.iter_mut().for_each(|piece| piece.slab = Some(slab));
    pieces
}

/// Free and cached blocks of a slab are pinned by its blocks in use alike; an empty slab pins nothing; free
/// memory outside of slabs is given back.
#[test]
fn slabs() {
    let (free, cached) = (Usage::Free, Usage::Cached);
    let mut pieces = slab(HEAP, 1024, &[BLOCK, free, cached, BLOCK, BLOCK, free, free, free]);
    pieces.extend(slab(HEAP + 2 * PAGE, 2048, &[free, cached]));
    pieces.extend(slab(HEAP + 3 * PAGE, 1024, &[BLOCK, free, free, free]));
    pieces.extend(consecutive(
        0,
        HEAP + 4 * PAGE,
        &[(2 * PAGE, free), (PAGE, BLOCK)],
    ));
    let held = [
        HEAP..HEAP + PAGE,
        HEAP + 2 * PAGE..HEAP + 3 * PAGE,
        HEAP + 5 * PAGE..HEAP + 7 * PAGE,
    ];
    let (found, blocks) = measured(&layout(Division::Extents, pieces), &held);
    // Of the first slab, two blocks that are not in use are held.
    assert_eq!(pins(&blocks), [682, 683, 683, 0, 0]);
    let sums = found.arenas[0];
    assert_eq!((sums.pinned, sums.kept), (2048, PAGE + PAGE));
    assert_eq!((sums.trimmable, sums.cached), (PAGE, 1024 + 2048));
    let class = found.classes[&1024];
    assert_eq!((class.slabs, class.block_count, class.held), (2, 4, PAGE));
    assert_eq!((class.blocks, class.cached, class.free), (2048, 1024, 1024));
    assert_eq!((found.classes[&2048].slabs, found.classes.len()), (1, 2));
}

/// Blocks of a slab within a block of another one pin both.
#[test]
fn slabs_within_slabs() {
    let mut pieces = slab(HEAP, 1024, &[Usage::Free, BLOCK, BLOCK, Usage::Free]);
    let inner = slab(
        HEAP + 1024 + 512,
        128,
        &[BLOCK, Usage::Free, Usage::Free, Usage::Free],
    );
    pieces.splice(1..2, inner);
    let (found, blocks) = measured(&layout(Division::Slots, pieces), &up_to(HEAP + PAGE));
    let address = |block: &Pinning| block.address - HEAP;
    assert_eq!(blocks.iter().map(address).collect::<Vec<_>>(), [1536, 2048]);
    // The inner one's free memory, and a ninth of the outer one's.
    assert_eq!(pins(&blocks), [384 + 2048 / 9, 2048 - 2048 / 9]);
    let sums = found.arenas[0];
    assert_eq!((sums.pinned, sums.trimmable), (384 + 2048, 0));
    assert_eq!(found.classes.values().map(|class| class.slabs).sum::<u64>(), 2);
}

fn usage() -> impl Strategy<Value = Usage> {
    prop::sample::select(vec![
        BLOCK,
        BLOCK,
        Usage::Free,
        Usage::Cached,
        Usage::Unjoined,
        Usage::Top,
        Usage::Own,
        Usage::Unknown,
    ])
}

proptest! {
    /// Sums agree with each other, and with a count of each 16 bytes of each page.
    #[test]
    fn any_pieces(
        sizes in prop::collection::vec((1..2000_u64, usage()), 0..80),
        more in prop::collection::vec((1..2000_u64, usage()), 0..20),
        held in prop::collection::vec(any::<bool>(), 1000),
        division in prop::sample::select(vec![Division::Chunks, Division::Extents, Division::Slots]),
    ) {
        let sized = |sizes: &[(u64, Usage)]| sizes.iter().map(|(size, usage)| (size * 16, *usage)).collect::<Vec<_>>();
        let mut pieces = consecutive(0, HEAP + 32, &sized(&sizes));
        let end = pieces.last().map_or(HEAP, |piece| piece.range.end);
        pieces.extend(consecutive(1, end + 160, &sized(&more)));
        let is_held = |at: u64| held[usize::try_from((at - HEAP) / PAGE).unwrap()];
        let pages = (HEAP..).step_by(1 << 12).zip(&held).filter(|(_, held)| **held);
        let runs: Vec<_> = pages.map(|(page, _)| page..page + PAGE).collect();
        let (found, _) = measured(&layout(division, pieces.clone()), &runs);
        let count = |usages: &[fn(&Usage) -> bool]| -> u64 {
            let granules = pieces.iter().filter(|piece| usages.iter().any(|is| is(&piece.usage)));
            let granules = granules.flat_map(|piece| piece.range.clone().step_by(16));
            granules.filter(|at| is_held(*at)).count() as u64 * 16
        };
        let total = found.total();
        prop_assert_eq!(total.held, count(&[|_| true]));
        prop_assert_eq!(total.blocks, count(&[|usage| matches!(usage, Usage::Block { .. })]));
        prop_assert_eq!(total.cached, count(&[|usage| matches!(usage, Usage::Cached | Usage::Unjoined)]));
        prop_assert_eq!(total.free(), count(&[|usage| matches!(usage, Usage::Free | Usage::Top)]));
        let is_free = |at: u64| {
            pieces.iter().any(|piece| piece.range.contains(&at) && matches!(piece.usage, Usage::Free | Usage::Top))
        };
        let is_whole = |run: &&Range<u64>| (run.start..run.end).step_by(16).all(is_free);
        prop_assert_eq!(total.whole, runs.iter().filter(is_whole).count() as u64 * PAGE);
    }
}
