use std::ops::Range;

use proptest::prelude::*;
use unwind_tables::addr::Avma;

use super::granules::Granules;
use super::{Allocator, End, Listing, Unused, blocks_in_use, find, layouts};
use crate::Memory;
use crate::heap::{Block, Heap};
use crate::layout::{Piece, Usage};
use memleak_process::maps::{self, MapsEntry};

const MAPS: &[u8] = b"\
555500000000-555500010000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 rw-p 00000000 fe:01 1                          /usr/lib/libc.so.6
";
const BRK: Range<u64> = 0x5555_0000_0000..0x5555_0001_0000;
const DATA: Range<u64> = 0x7f00_0000_0000..0x7f00_0000_1000;
const STATE: u64 = DATA.start + 0x100;
/// Addresses of the first of an arena's lists of small chunks, of the top chunk's address, and of the bins.
const FAST: u64 = STATE + 16;
const TOP: u64 = STATE + 96;
const BINS: u64 = STATE + 112;
const CACHE_SIZE: u64 = 0x290;

/// Two mappings.
#[derive(Clone, Debug)]
struct Made(Vec<(u64, Vec<u64>)>);

impl Made {
    fn new() -> Self {
        let words = |range: &Range<u64>| vec![0; usize::try_from((range.end - range.start) / 8).unwrap()];
        Self(vec![(BRK.start, words(&BRK)), (DATA.start, words(&DATA))])
    }

    fn at(&mut self, address: u64) -> &mut u64 {
        let (start, words) = &mut self.0[usize::from(address >= DATA.start)];
        &mut words[usize::try_from((address - *start) / 8).unwrap()]
    }

    /// Puts the chunk at `at` at the front of the list whose head is at `head`.
    fn link(&mut self, head: u64, at: u64) {
        let next = std::mem::replace(self.at(head), at);
        *self.at(at + if head < BRK.end { 0 } else { 16 }) = next;
    }

    fn entries() -> Vec<MapsEntry> {
        maps::parse(MAPS).map(Result::unwrap).collect()
    }
}

impl Memory for Made {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        for range in ranges {
            let bytes = range.end.offset_from(range.start);
            let mut words = vec![0; usize::try_from(bytes / 8).unwrap()];
            if self.read(range.start, &mut words) {
                see(range.start, &words);
            }
        }
    }

    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        read(&self.0, at, words)
    }
}

/// Reads words of one of some mappings, which are given by their starts.
pub(super) fn read(mappings: &[(u64, Vec<u64>)], at: Avma, words: &mut [u64]) -> bool {
    let found = mappings.iter().find_map(|(start, all)| {
        let first = usize::try_from(at.get().checked_sub(*start)? / 8).ok()?;
        all.get(first..first.checked_add(words.len())?)
    });
    found.inspect(|found| words.copy_from_slice(found)).is_some()
}

/// All pieces of all layouts, which must be as they are promised.
pub(super) fn pieces(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for layout in layouts(memory, maps) {
        let mut last: Option<Piece> = None;
        layout.pieces.visit(&mut |piece| {
            let arena = |piece: &Piece| piece.arena.unwrap_or(usize::MAX);
            assert!(piece.range.start < piece.range.end, "{piece:x?}");
            assert!(
                piece.arena.is_none_or(|arena| arena < layout.arenas.len()),
                "{piece:x?}"
            );
            if let Some(last) = last.replace(piece.clone()) {
                let is_next = arena(&last) < arena(piece)
                    || arena(&last) == arena(piece) && last.range.end <= piece.range.start;
                assert!(is_next, "{last:x?} {piece:x?}");
            }
            if let Usage::Block { address } = piece.usage {
                assert!(piece.range.contains(&address), "{piece:x?}");
            }
            pieces.push(piece.clone());
        });
    }
    pieces
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Listed,
    Unlisted,
    Free,
    /// In the thread's cache.
    Cached,
    /// In one of the arena's lists of small chunks, if it is small.
    Fast,
}

/// A heap, its listed blocks, and its unused memory.
#[derive(Clone, Debug)]
struct Sample {
    memory: Made,
    listed: Vec<Range<u64>>,
    unused: Vec<Range<u64>>,
}

/// Chunks of sizes in units of 16 bytes, behind the thread's cache and before the top.
fn sample(chunks: &[(u64, Use)], is_mangled: bool) -> Sample {
    let mut memory = Made::new();
    for bin in (BINS..BINS + 127 * 16).step_by(16) {
        (*memory.at(bin), *memory.at(bin + 8)) = (bin - 16, bin - 16);
    }
    let ring = BINS + 127 * 16 + 16;
    *memory.at(ring) = STATE;
    let mut unused = std::iter::once(STATE..ring + 40).collect::<Vec<_>>();
    let mut listed = Vec::new();
    *memory.at(BRK.start + 8) = CACHE_SIZE | 1;
    let (cache, mut at) = (BRK.start + 16, BRK.start + CACHE_SIZE);
    let mut free_before = None;
    let mut links = Vec::new();
    for &(units, kind) in chunks {
        let size = units * 16;
        *memory.at(at) = free_before.unwrap_or(0x7777);
        *memory.at(at + 8) = size | u64::from(free_before.is_none());
        free_before = (kind == Use::Free).then_some(size);
        let bin = units - 2;
        let is_unused = match kind {
            Use::Listed => {
                listed.push(at + 16..at + size + 8);
                false
            }
            Use::Unlisted => false,
            Use::Free => true,
            Use::Cached => {
                *memory.at(cache + bin / 4 * 8) += 1 << (bin % 4 * 16);
                memory.link(cache + 128 + bin * 8, at + 16);
                *memory.at(at + 24) = 0x1234_5678_9abc_def0;
                links.push(at + 16);
                true
            }
            Use::Fast if bin < 10 => {
                memory.link(FAST + 8 * bin, at);
                links.push(at + 16);
                true
            }
            Use::Fast => false,
        };
        if is_unused {
            unused.push(at + 8..at + size + 8);
        }
        at += size;
    }
    if chunks.iter().any(|(_, kind)| *kind == Use::Cached) {
        unused.push(BRK.start + 8..BRK.start + CACHE_SIZE);
    }
    *memory.at(at) = free_before.unwrap_or(0);
    *memory.at(at + 8) = (BRK.end - at) | u64::from(free_before.is_none());
    *memory.at(TOP) = at;
    unused.push(at + 8..BRK.end);
    for link in links.into_iter().filter(|_| is_mangled) {
        *memory.at(link) ^= link >> 12;
    }
    Sample {
        memory,
        listed,
        unused,
    }
}

/// Listed blocks.
pub(super) fn heap(blocks: &[Range<u64>]) -> Heap {
    let block = |range: &Range<u64>| Block {
        address: Avma::new(range.start),
        size: range.end - range.start,
        allocated_at: 0,
        stack: 0,
    };
    Heap::new(blocks.iter().map(block).collect())
}

fn found(sample: &Sample) -> Unused {
    find(&sample.memory, &Made::entries(), &heap(&sample.listed))
}

pub(super) fn ranges(unused: &Unused) -> Vec<Range<u64>> {
    let ranges = unused.ranges.iter();
    ranges.map(|range| range.start.get()..range.end.get()).collect()
}

fn chunks() -> impl Strategy<Value = Vec<(u64, Use)>> {
    let kind = prop::sample::select(vec![
        Use::Listed,
        Use::Unlisted,
        Use::Free,
        Use::Cached,
        Use::Fast,
    ]);
    prop::collection::vec((prop_oneof![2_u64..12, 12..66_u64], kind), 0..50)
}

/// Words that are written somewhere: numbers, addresses of the heap and of the state, sizes with flags.
fn damage() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let words = |range: Range<u64>| (range.start / 8..range.end / 8).prop_map(|word| word * 8);
    let place = prop_oneof![words(BRK), words(STATE..BINS + 16), words(STATE..DATA.end)];
    let value = prop_oneof![
        any::<u64>(),
        Just(0),
        words(BRK),
        words(STATE..DATA.end),
        (0_u64..200).prop_map(|units| units * 16 + 1),
        0_u64..0x1000
    ];
    prop::collection::vec((place, value), 0..40)
}

/// A state in which nothing is allocated yet is no arena, and neither is memory without one.
#[test]
fn no_arena() {
    let unused = find(&Made::new(), &Made::entries(), &Heap::default());
    assert_eq!(unused, Unused::default());
    assert_eq!(find(&Made::new(), &[], &Heap::default()), Unused::default());
}

/// A header that contradicts the one before it ends the walk: memory before it is known, memory behind it
/// stays a root, up to the next known chunk.
#[test]
fn a_contradiction_ends_the_walk() {
    let kinds = [
        Use::Listed,
        Use::Free,
        Use::Unlisted,
        Use::Free,
        Use::Listed,
        Use::Free,
        Use::Unlisted,
    ];
    let mut sample = sample(&kinds.map(|kind| (4, kind)), true);
    let at = |index: u64| BRK.start + CACHE_SIZE + index * 64;
    *sample.memory.at(at(3) + 8) = 0x4141_4141_4141_4141;
    let unused = found(&sample);
    let free = |index| at(index) + 8..at(index + 1) + 8;
    assert_eq!(ranges(&unused)[..2], [free(1), free(5)]);
    assert_eq!(unused.facts.ends[&End::Malformed], 1);
    assert_eq!(unused.facts.ends[&End::Top], 1);
}

/// A listing of changing memory has the blocks between a chunk that a bin leads to and the change, and the
/// number of bytes that it misses.
#[test]
fn listings_of_memory_that_changes() {
    let kinds = [Use::Unlisted, Use::Free].into_iter().chain([Use::Unlisted; 4]);
    let chunks: Vec<_> = kinds.map(|kind| (4, kind)).collect();
    let mut sample = sample(&chunks, true);
    let at = |index: u64| BRK.start + CACHE_SIZE + index * 64;
    for link in [BINS, BINS + 8] {
        *sample.memory.at(link) = at(1);
        *sample.memory.at(at(1) + 16 + link - BINS) = BINS - 16;
    }
    *sample.memory.at(at(4) + 8) = 0x4141_4141_4141_4141;
    let listing = blocks_in_use(&sample.memory, &Made::entries()).unwrap();
    let blocks = listing.blocks.iter().map(Block::range);
    let block = |index| Avma::new(at(index) + 16)..Avma::new(at(index + 1) + 8);
    assert_eq!(blocks.collect::<Vec<_>>(), [block(2), block(3)]);
    assert_eq!(listing.left, (at(1) - BRK.start) + (at(6) - at(4)));
}

/// A list that leads back to itself, or to no chunk, or that is shorter than its cache says, is not trusted.
#[test]
fn lists_that_are_wrong() {
    let chunks = [
        (4, Use::Listed),
        (2, Use::Cached),
        (2, Use::Cached),
        (2, Use::Cached),
        (3, Use::Listed),
    ];
    let last = BRK.start + CACHE_SIZE + 64;
    for link in [last + 16 + 64, last + 32, 0x1000, last + 16] {
        let mut sample = sample(&chunks, false);
        *sample.memory.at(last + 16) = link;
        let unused = found(&sample);
        assert_eq!(unused.facts.cached, 0, "{link:#x}");
        assert_eq!(ranges(&unused).len(), 2, "{link:#x}");
    }
    assert_eq!(found(&sample(&chunks, false)).facts.cached, 3);
}

/// If many blocks are not where there are chunks, the walk has gone through something else. Only the state,
/// and the top, whose address the arena has, are unused then.
#[test]
fn blocks_elsewhere() {
    let mut sample = sample(&[(60, Use::Free); 10], true);
    let chunks = (BRK.start + CACHE_SIZE..).step_by(960).take(10);
    sample.listed = chunks
        .flat_map(|chunk| [chunk + 64..chunk + 80, chunk + 128..chunk + 160])
        .collect();
    let unused = found(&sample);
    let (state, top) = (sample.unused.first().cloned(), sample.unused.last().cloned());
    assert_eq!(ranges(&unused), [top.unwrap(), state.unwrap()]);
    assert!(unused.facts.disagreeing >= 20);
}

proptest! {
    /// Every chunk that is free or in a list is found, and nothing else, with links of either kind.
    #[test]
    fn any_heap(chunks in chunks(), is_mangled in any::<bool>()) {
        let sample = sample(&chunks, is_mangled);
        let unused = found(&sample);
        let expected = Unused::new(sample.unused.clone(), Vec::new(), Default::default());
        prop_assert_eq!(ranges(&unused), ranges(&expected));
        prop_assert_eq!(unused.facts.allocator, Some(Allocator::Glibc));
        prop_assert_eq!(unused.facts.agreeing, sample.listed.len() as u64);
    }

    /// Chunks that are neither free nor in a list are listed as blocks in use, and nothing else.
    #[test]
    fn any_blocks_in_use(chunks in chunks(), is_mangled in any::<bool>()) {
        let sample = sample(&chunks, is_mangled);
        let Listing { blocks, left, .. } = blocks_in_use(&sample.memory, &Made::entries()).unwrap();
        prop_assert_eq!(left, 0);
        let mut at = BRK.start + CACHE_SIZE;
        // The cache itself is the allocator's own block.
        let mut expected = vec![(BRK.start + 16, CACHE_SIZE - 8)];
        for (units, kind) in chunks {
            let is_used = match kind {
                Use::Listed | Use::Unlisted => true,
                Use::Fast => units >= 12,
                Use::Free | Use::Cached => false,
            };
            if is_used {
                expected.push((at + 16, units * 16 - 8));
            }
            at += units * 16;
        }
        let found: Vec<_> = blocks.iter().map(|block| (block.address.get(), block.size)).collect();
        prop_assert_eq!(found, expected);
    }

    /// For any contents of memory, the search ends, ranges ascend apart from each other, and none overlaps a
    /// listed block.
    #[test]
    fn any_damage(chunks in chunks(), damage in damage(), others in prop::collection::vec((BRK, 0..3000_u64), 0..5)) {
        let mut sample = sample(&chunks, true);
        for (at, value) in damage {
            *sample.memory.at(at) = value;
        }
        sample.listed.extend(others.iter().map(|(at, size)| *at..at + size));
        let unused = found(&sample);
        let ranges = ranges(&unused);
        prop_assert!(ranges.iter().all(|range| range.start < range.end));
        prop_assert!(ranges.is_sorted_by(|last, next| last.end < next.start));
        for block in heap(&sample.listed).blocks() {
            let block = block.range().start.get()..block.range().end.get();
            prop_assert!(ranges.iter().all(|range| range.end <= block.start || block.end <= range.start));
        }
        pieces(&sample.memory, &Made::entries());
    }

    /// Each chunk is one piece, by its usage, and nothing is between them.
    #[test]
    fn any_layout(chunks in chunks(), is_mangled in any::<bool>()) {
        let sample = sample(&chunks, is_mangled);
        let has_cached = chunks.iter().any(|(_, kind)| *kind == Use::Cached);
        let block = |at: u64| Usage::Block { address: at + 16 };
        let mut at = BRK.start + CACHE_SIZE;
        let cache = if has_cached { Usage::Own } else { block(BRK.start) };
        let mut expected = vec![(BRK.start..at, cache)];
        for (units, kind) in chunks {
            let usage = match kind {
                Use::Free => Usage::Free,
                Use::Cached => Usage::Cached,
                Use::Fast if units < 12 => Usage::Unjoined,
                Use::Listed | Use::Unlisted | Use::Fast => block(at),
            };
            expected.push((at..at + units * 16, usage));
            at += units * 16;
        }
        expected.push((at..BRK.end, Usage::Top));
        let found = pieces(&sample.memory, &Made::entries());
        let found: Vec<_> = found.into_iter().map(|piece| (piece.range, piece.usage)).collect();
        prop_assert_eq!(found, expected);
    }

    /// Runs are those of a plain set.
    #[test]
    fn runs_of_granules(granules in prop::collection::btree_set(0_u64..70_000, 0..300), all in 65_400_u64..65_600) {
        let mut set = Granules::default();
        let plain: std::collections::BTreeSet<u64> = granules.iter().copied().chain(all..all + 100).collect();
        granules.iter().for_each(|granule| assert!(set.insert(granule * 16)));
        prop_assert!(set.insert_all(all * 16, 1600));
        let mut found = Vec::new();
        let mut last = 0;
        set.runs(&mut |run| {
            assert!(last == 0 || last < run.start);
            last = run.end;
            found.extend(run.step_by(16).map(|granule| granule / 16));
        });
        prop_assert_eq!(found, plain.into_iter().collect::<Vec<_>>());
    }
}
