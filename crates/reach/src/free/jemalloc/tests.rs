use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use unwind_tables::addr::Avma;

use super::super::records::PAGE;
use super::tree::Form;
use super::{classes, find, in_use};
use crate::Memory;
use crate::free::tests::{heap, pieces, ranges};
use crate::free::{Allocator, End, Unused};
use crate::heap::{Block, Heap};
use crate::layout::Usage;
use memleak_process::maps::{self, MapsEntry};

const MAPS: &[u8] = b"\
7d0000000000-7d0000003000 rw-p 00000000 00:00 0
7e0000000000-7e0000400000 rw-p 00000000 00:00 0
7e0040000000-7e0040400000 rw-p 00000000 00:00 0
7f0000000000-7f0000001000 rw-p 00000000 fe:01 1                          /usr/lib/libjemalloc.so.2
7f0000001000-7f0000203000 rw-p 00000000 00:00 0
";
const TLS: u64 = 0x7d00_0000_0000;
const BASE: Range<u64> = 0x7e00_0000_0000..0x7e00_0040_0000;
const HEAP: u64 = 0x7e00_4000_0000;
const DATA: u64 = 0x7f00_0000_0000;
const ROOT: u64 = DATA + 0x1040;
/// Addresses of the first node and of the first record, in the memory for these.
const NODES: u64 = BASE.start + 0x1000;
const RECORDS: u64 = BASE.start + 0x30_0000;
/// Words of a thread's data before the links to others, and before its bins.
const LINK: u64 = 10;
const BINS: u64 = 60;
/// Places in each stack.
const PLACES: u64 = 16;
const THREADS: u64 = 2;
const CLASSES: u64 = 13;

/// Words that are not 0, in some mappings. Nothing can be read within a `visit`, as with the memory of a
/// process.
#[derive(Clone, Debug)]
struct Made(BTreeMap<u64, u64>, Cell<bool>);

impl Made {
    fn put(&mut self, at: u64, words: &[u64]) {
        self.0.extend((at..).step_by(8).zip(words.iter().copied()));
    }

    fn entries() -> Vec<MapsEntry> {
        maps::parse(MAPS).map(Result::unwrap).collect()
    }
}

impl Memory for Made {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        assert!(!self.1.replace(true));
        for range in ranges {
            let (start, end) = (range.start.get(), range.end.get());
            let touched: BTreeSet<u64> = self.0.range(start..end).map(|(at, _)| at & !(PAGE - 1)).collect();
            for page in touched {
                let (start, end) = (page.max(start), (page + PAGE).min(end));
                let words: Vec<u64> = (start..end)
                    .step_by(8)
                    .map(|at| self.0.get(&at).copied().unwrap_or(0))
                    .collect();
                see(Avma::new(start), &words);
            }
        }
        self.1.set(false);
    }

    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        assert!(!self.1.get());
        let (start, end) = (at.get(), at.get() + 8 * words.len() as u64);
        for (word, at) in words.iter_mut().zip((start..).step_by(8)) {
            *word = self.0.get(&at).copied().unwrap_or(0);
        }
        let within = |entry: &MapsEntry| entry.range.start.get() <= start && end <= entry.range.end.get();
        Self::entries().iter().any(within)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Listed,
    Unlisted,
    Free,
    /// In the cache of a thread.
    Cached(u64),
}

#[derive(Clone, Debug)]
enum Extent {
    /// A slab of one page: its class, and the uses of its regions, which repeat.
    Slab(u64, Vec<Use>),
    /// A block of 16 KiB, some bytes behind the start of five pages.
    Large(u64, Use),
    /// A block of 21 pages, a size between two classes, in an extent of 22 pages.
    Between(u64),
    /// Free pages: their number and state.
    Free(u64, u64),
}

/// Memory, its listed blocks, and its unused, used and cached parts.
#[derive(Clone, Debug)]
struct Sample {
    memory: Made,
    listed: Vec<Range<u64>>,
    unused: Vec<Range<u64>>,
    used: Vec<Range<u64>>,
    cached: u64,
    /// End of the extents, and number of records.
    end: u64,
    records: u64,
    form: Form,
    nodes: u64,
}

impl Sample {
    fn new(form: Form) -> Self {
        let mut sample = Self {
            memory: Made(BTreeMap::new(), Cell::new(false)),
            listed: Vec::new(),
            unused: std::iter::once(BASE.start + 256..BASE.end).collect(),
            used: Vec::new(),
            cached: 0,
            end: HEAP,
            records: 0,
            form,
            nodes: NODES,
        };
        let size = BASE.end - BASE.start;
        let rest = 0xfff | 1 << 13 | 1 << 15 | 232 << 20;
        sample
            .memory
            .put(BASE.start, &[size, 0, rest, BASE.start + 0x30_0000, 0x10_0000]);
        sample.memory.put(DATA + 0x40, &[thread(0)]);
        for number in 0..THREADS {
            let (next, last) = ((number + 1) % THREADS, (number + THREADS - 1) % THREADS);
            sample
                .memory
                .put(thread(number) + 8 * LINK, &[thread(next), thread(last)]);
            let stack = sample.stack();
            for class in 0..CLASSES {
                let lowest = stack + 8 + 8 * PLACES * class;
                let end = lowest + 8 * PLACES;
                let bounds = end << 32 & 0xffff << 32 | (lowest & 0xffff) << 16;
                sample.memory.put(bin(number, class), &[end, 7, bounds]);
            }
        }
        sample
    }

    /// Adds the memory of stacks.
    fn stack(&mut self) -> u64 {
        let stack = self.end;
        self.add(4, 0, |at| [36 << 20, at]);
        self.unused.push(stack..self.end);
        self.memory.put(stack, &[0x7a7a_7a7a_7a7a_7a7a]);
        // Stale contents, and the mark behind.
        let stale = vec![HEAP; usize::try_from(PLACES * CLASSES).unwrap()];
        self.memory.put(stack + 8, &stale);
        self.memory
            .put(stack + 8 + 8 * PLACES * CLASSES, &[0xa7a7_a7a7_a7a7_a7a7]);
        stack
    }

    /// Adds a record of an extent of some pages: `head` are its bits and first address.
    fn add(&mut self, pages: u64, state: u64, head: impl FnOnce(u64) -> [u64; 2]) -> u64 {
        let (start, record) = (self.end, RECORDS + 128 * self.records);
        let [bits, first] = head(start);
        self.memory
            .put(record, &[bits | state << 17, first, pages * PAGE]);
        self.records += 1;
        self.end += pages * PAGE;
        for page in [start, self.end - PAGE] {
            self.map(page, record);
        }
        record
    }

    /// Makes the page lead to the record.
    fn map(&mut self, page: u64, record: u64) {
        let (bits, stride): (&[u32], u64) = match self.form {
            Form::Packed => (&[18, 18], 8),
            Form::Wide => (&[15, 15, 15], 16),
        };
        let (leaf, nodes) = bits.split_last().unwrap();
        let mut shift = 12 + bits.iter().sum::<u32>();
        let mut node = ROOT;
        for bits in nodes {
            shift -= bits;
            let at = node + 8 * (page >> shift & ((1 << bits) - 1));
            node = *self.memory.0.entry(at).or_insert_with(|| {
                let made = self.nodes;
                self.nodes += 16 << 15;
                made
            });
        }
        let at = node + stride * (page >> 12 & ((1 << leaf) - 1));
        let element = match self.form {
            Form::Packed => vec![record | 5 << 48 | 3],
            Form::Wide => vec![record, 5 << 5 | 3],
        };
        self.memory.put(at, &element);
    }

    fn push(&mut self, extent: &Extent) {
        let start = self.end;
        match extent {
            Extent::Free(pages, state) => {
                self.add(*pages, *state, |at| [3, at]);
                self.unused.push(start..self.end);
            }
            Extent::Large(offset, kind) => {
                let first = start + offset;
                self.add(5, 0, |_| [3 | 36 << 20, first]);
                self.unused.extend([start..first, first + 4 * PAGE..self.end]);
                // Caches have bins for smaller classes only.
                let kind = if matches!(kind, Use::Free | Use::Cached(_)) {
                    Use::Unlisted
                } else {
                    *kind
                };
                self.use_as(kind, first..first + 4 * PAGE, 36);
            }
            Extent::Between(offset) => {
                let first = start + offset;
                self.add(22, 0, |_| [3 | 46 << 20, first]);
                self.unused.extend([start..first, first + 21 * PAGE..self.end]);
                self.use_as(Use::Listed, first..first + 21 * PAGE, 46);
            }
            Extent::Slab(class, kinds) => {
                let size = classes::size(*class).unwrap();
                let mut free = vec![0_u64; 8];
                for number in 0..PAGE / size {
                    let kind = kinds[usize::try_from(number).unwrap() % kinds.len()];
                    let region = start + number * size..start + (number + 1) * size;
                    if kind == Use::Free {
                        free[usize::try_from(number / 64).unwrap()] |= 1 << (number % 64);
                    }
                    self.use_as(kind, region, *class);
                }
                let count: u64 = free.iter().map(|word| u64::from(word.count_ones())).sum();
                let record = self.add(1, 0, |at| [3 | 1 << 12 | class << 20 | count << 28, at]);
                self.memory.put(record + 64, &free);
                self.unused.push(start + PAGE / size * size..self.end);
            }
        }
    }

    fn use_as(&mut self, kind: Use, range: Range<u64>, class: u64) {
        let has_room = |thread: u64| {
            let [top, lowest] = [0, 16].map(|offset| self.memory.0[&(bin(thread, class) + offset)]);
            top & 0xffff > lowest >> 16 & 0xffff
        };
        match kind {
            Use::Listed => {
                self.listed.push(range.clone());
                self.used.push(range);
            }
            Use::Cached(thread) if !has_room(thread) => self.used.push(range),
            Use::Unlisted => self.used.push(range),
            Use::Free => self.unused.push(range),
            Use::Cached(thread) => {
                let bin = bin(thread, class);
                let top = self.memory.0[&bin] - 8;
                self.memory.put(top, &[range.start]);
                self.memory.put(bin, &[top]);
                self.cached += 1;
                self.unused.push(range);
            }
        }
    }
}

fn thread(number: u64) -> u64 {
    TLS + 0x100 + number * 0x1000
}

fn bin(thread_number: u64, class: u64) -> u64 {
    thread(thread_number) + 8 * (BINS + 3 * class)
}

fn found(sample: &Sample) -> Unused {
    find(&sample.memory, &Made::entries(), &heap(&sample.listed))
}

fn blocks(sample: &Sample) -> Vec<Range<u64>> {
    let blocks = in_use(&sample.memory, &Made::entries()).unwrap_or_default();
    let blocks = blocks.iter().map(Block::range);
    blocks.map(|range| range.start.get()..range.end.get()).collect()
}

fn sample(form: Form, extents: &[Extent]) -> Sample {
    let mut sample = Sample::new(form);
    for extent in extents {
        sample.push(extent);
    }
    sample
}

fn extents() -> impl Strategy<Value = Vec<Extent>> {
    let kind = || {
        prop_oneof![
            Just(Use::Listed),
            Just(Use::Unlisted),
            Just(Use::Free),
            (0..THREADS).prop_map(Use::Cached)
        ]
    };
    let extent = prop_oneof![
        3 => (prop::sample::select(vec![1_u64, 3, 4, 8, 12]), prop::collection::vec(kind(), 1..70))
            .prop_map(|(class, kinds)| Extent::Slab(class, kinds)),
        1 => (0_u64..64, kind()).prop_map(|(lines, kind)| Extent::Large(64 * lines, kind)),
        1 => (1_u64..64).prop_map(|lines| Extent::Between(64 * lines)),
        1 => (1_u64..6, 1_u64..4).prop_map(|(pages, state)| Extent::Free(pages, state)),
    ];
    prop::collection::vec(extent, 0..30)
}

fn form() -> impl Strategy<Value = Form> {
    prop::sample::select(vec![Form::Packed, Form::Wide])
}

/// Words that are written somewhere: addresses of all memory, bits of records, and others.
fn damage(places: Vec<u64>) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let words = |range: Range<u64>| (range.start / 8..range.end / 8).prop_map(|word| word * 8);
    let known = || prop::sample::select(places.clone());
    let place = prop_oneof![
        4 => known(),
        1 => words(TLS..TLS + 0x3000),
        1 => words(DATA..DATA + 0x2000),
        1 => words(BASE.start..BASE.start + 0x100),
        1 => words(RECORDS..RECORDS + 0x1000)
    ];
    let value = prop_oneof![
        any::<u64>(),
        Just(0),
        known(),
        words(HEAP..HEAP + 0x20_0000),
        (0_u64..512).prop_map(|page| HEAP + PAGE * page),
        (0_u64..1 << 40),
        (0_u64..1 << 13).prop_map(|bits| bits << 12),
        (0_u64..600).prop_map(|pages| pages * PAGE),
    ];
    prop::collection::vec((place, value), 1..12)
}

fn damaged() -> impl Strategy<Value = Sample> {
    (form(), extents()).prop_flat_map(|(form, extents)| {
        let sample = sample(form, &extents);
        let places = sample.memory.0.keys().copied().collect();
        damage(places).prop_map(move |damage| {
            let mut sample = sample.clone();
            sample.memory.0.extend(damage);
            sample
        })
    })
}

/// Nothing is found without jemalloc's own memory, or without mappings.
#[test]
fn nothing_to_find() {
    let mut sample = Sample::new(Form::Packed);
    sample.memory.0.remove(&BASE.start);
    assert_eq!(found(&sample), Unused::default());
    assert!(in_use(&sample.memory, &Made::entries()).is_none());
    assert_eq!(find(&sample.memory, &[], &Heap::default()), Unused::default());
}

/// A record that contradicts itself is being changed, or is no record: its slab stays a root, and is counted.
#[test]
fn a_record_that_contradicts_itself() {
    let slab = Extent::Slab(4, vec![Use::Listed, Use::Free]);
    for (word, value) in [
        // One more free region; another state; no size; a class that does not exist; another page.
        (64, 0xaaaa_aaaa_aaaa_aaab),
        (0, 3 | 1 << 12 | 4 << 17 | 4 << 20 | 32 << 28),
        (16, 0),
        (0, 3 | 1 << 12 | 255 << 20 | 32 << 28),
        (8, HEAP + 100 * PAGE),
    ] {
        let mut sample = sample(Form::Packed, &[slab.clone(), slab.clone()]);
        let good = ranges(&found(&sample));
        sample.memory.put(RECORDS + 128 * 2 + word, &[value]);
        let unused = found(&sample);
        let page = HEAP + 8 * PAGE..HEAP + 9 * PAGE;
        let left: Vec<_> = good
            .iter()
            .filter(|range| !page.contains(&range.start))
            .cloned()
            .collect();
        assert_eq!(ranges(&unused), left, "{word} {value:x}");
        assert_eq!(unused.facts.ends[&End::Malformed], 1);
    }
}

/// Extents that overlap are both left alone.
#[test]
fn extents_that_overlap() {
    let mut sample = sample(
        Form::Wide,
        &[
            Extent::Free(2, 1),
            Extent::Slab(8, vec![Use::Free, Use::Unlisted]),
        ],
    );
    sample.memory.put(RECORDS + 128 * 2 + 16, &[3 * PAGE]);
    let unused = found(&sample);
    assert_eq!(unused.facts.ends[&End::Malformed], 2);
    assert!(ranges(&unused).iter().all(|range| range.end <= HEAP + 8 * PAGE));
    assert_eq!(blocks(&sample), []);
}

/// If a thread's cache is not found, its stack stays a root, and blocks that were ever in it are not listed
/// as in use.
#[test]
fn caches_that_are_not_known() {
    let kinds = [Use::Cached(0), Use::Cached(1), Use::Unlisted, Use::Unlisted];
    let mut sample = sample(Form::Packed, &[Extent::Slab(12, kinds.to_vec())]);
    assert_eq!(found(&sample).facts.unknown_caches, 0);
    assert_eq!(blocks(&sample), sample.used);
    sample.memory.put(DATA + 0x40, &[0]);
    let unused = found(&sample);
    assert_eq!((unused.facts.unknown_caches, unused.facts.cached), (2, 0));
    assert!(ranges(&unused).iter().all(|range| range.start < HEAP));
    assert_eq!(blocks(&sample), sample.used);
}

/// If many blocks are not where the records have blocks, this allocator has not allocated them.
#[test]
fn blocks_elsewhere() {
    let mut sample = sample(Form::Packed, &[Extent::Slab(8, vec![Use::Unlisted])]);
    let slab = HEAP + 8 * PAGE;
    sample.listed = (0..20)
        .map(|number| slab + 16 + 64 * number..slab + 32 + 64 * number)
        .collect();
    let unused = found(&sample);
    assert_eq!(ranges(&unused), []);
    assert_eq!(unused.facts.ends[&End::Distrusted], 1);
}

proptest! {
    /// All memory that is free or cached is found, and nothing else; blocks in use are listed with their full
    /// size.
    #[test]
    fn any_heap(form in form(), extents in extents()) {
        let sample = sample(form, &extents);
        let unused = found(&sample);
        let expected = Unused::new(sample.unused.clone(), Vec::new(), Default::default());
        prop_assert_eq!(ranges(&unused), ranges(&expected));
        prop_assert_eq!(unused.facts.allocator, Some(Allocator::Jemalloc));
        prop_assert_eq!(unused.facts.agreeing, sample.listed.len() as u64);
        prop_assert_eq!(unused.facts.cached, sample.cached);
        prop_assert_eq!(blocks(&sample), sample.used);
    }

    /// For any contents of memory, the search ends, ranges ascend apart from each other, and none overlaps a
    /// listed block.
    #[test]
    fn any_damage(sample in damaged()) {
        let unused = found(&sample);
        let ranges = ranges(&unused);
        prop_assert!(ranges.iter().all(|range| range.start < range.end));
        prop_assert!(ranges.is_sorted_by(|last, next| last.end < next.start));
        for block in heap(&sample.listed).blocks() {
            let block = block.range().start.get()..block.range().end.get();
            prop_assert!(ranges.iter().all(|range| range.end <= block.start || block.end <= range.start));
        }
        let blocks = blocks(&sample);
        prop_assert!(blocks.is_sorted_by(|last, next| last.end <= next.start));
        pieces(&sample.memory, &Made::entries());
    }

    /// The pieces of an allocator's memory are all of it; those that are blocks are the blocks in use, and as
    /// many are cached as are in caches.
    #[test]
    fn any_layout(form in form(), extents in extents()) {
        let sample = sample(form, &extents);
        let pieces = pieces(&sample.memory, &Made::entries());
        let all: u64 = pieces.iter().map(|piece| piece.range.end - piece.range.start).sum();
        prop_assert_eq!(all, sample.end - HEAP + (BASE.end - BASE.start));
        let blocks = pieces.iter().filter_map(|piece| piece.usage.address());
        let used: Vec<u64> = sample.used.iter().map(|used| used.start).collect();
        prop_assert_eq!(blocks.collect::<Vec<_>>(), used);
        let cached = pieces.iter().filter(|piece| piece.usage == Usage::Cached);
        prop_assert_eq!(cached.count() as u64, sample.cached);
    }
}
