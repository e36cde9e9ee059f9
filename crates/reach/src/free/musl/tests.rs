use std::ops::Range;

use proptest::prelude::*;
use unwind_tables::addr::Avma;

use super::super::tests::{heap, pieces, read};
use super::super::{Allocator, End, Listing, Unused, blocks_in_use, find};
use super::groups::{AREA, UNIT};
use crate::Memory;
use crate::heap::{Block, Heap};
use crate::layout::Usage;
use memleak_process::maps::{self, MapsEntry};

const MAPS: &[u8] = b"\
555500000000-555500001000 ---p 00000000 00:00 0                          [heap]
555500001000-555500003000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000500000-7f0000501000 rw-p 00000000 fe:01 1                          /lib/ld-musl-x86_64.so.1
7f0000501000-7f0000502000 rw-p 00000000 00:00 0
";
const AREAS: Range<u64> = 0x5555_0000_1000..0x5555_0000_3000;
const GROUPS: Range<u64> = 0x7f00_0000_0000..0x7f00_0040_0000;
const DATA: Range<u64> = 0x7f00_0050_0000..0x7f00_0050_2000;
/// The allocator's state is in `.bss`.
const CONTEXT: u64 = DATA.start + 0x1230;
const CONTEXT_BYTES: u64 = 928;
const SECRET: u64 = 0x0123_4567_89ab_cdef;
/// Records of an area.
const RECORDS: u64 = 101;
const RECORD: u64 = 40;
const CLASS_UNITS: [u64; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31];
const MAPPED: u64 = 63;

/// Three mappings.
#[derive(Clone, Debug)]
struct Made(Vec<(u64, Vec<u64>)>);

impl Made {
    /// An allocator without groups, and with two areas.
    fn new() -> Self {
        let words = |range: &Range<u64>| vec![0; usize::try_from((range.end - range.start) / 8).unwrap()];
        let mut made = Self(
            [AREAS, GROUPS, DATA]
                .map(|range| (range.start, words(&range)))
                .into(),
        );
        let [head, tail] = [AREAS.start, AREAS.start + AREA];
        for (at, value) in [(0, SECRET), (8, 1), (56, head), (64, tail)] {
            *made.at(CONTEXT + at) = value;
        }
        for (area, next) in [(head, tail), (tail, 0)] {
            *made.at(area) = SECRET;
            *made.at(area + 8) = next;
            *made.at(area + 16) = RECORDS;
        }
        made
    }

    fn at(&mut self, address: u64) -> &mut u64 {
        let (start, words) = self.0.iter_mut().rfind(|(start, _)| *start <= address).unwrap();
        &mut words[usize::try_from((address - *start) / 8).unwrap()]
    }

    fn entries() -> Vec<MapsEntry> {
        maps::parse(MAPS).map(Result::unwrap).collect()
    }

    /// Writes the four bytes before `at`.
    fn set_header(&mut self, at: u64, tag: u64, distance: u64) {
        let word = self.at(at - 8);
        *word = *word & 0xffff_ffff | tag << 40 | distance << 48;
    }

    fn set_record(&mut self, record: u64, group: u64, masks: u64, sizes: u64) {
        for (at, value) in [(16, group), (24, masks), (32, sizes)] {
            *self.at(record + at) = value;
        }
    }
}

impl Memory for Made {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        assert!(ranges.is_sorted_by(|last, next| last.end <= next.start));
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

#[derive(Clone, Debug)]
enum Use {
    /// Free by its record: by the mask of available slots if true, by that of freed slots if not.
    Free(bool),
    /// A block that begins some units behind the start of its slot, as far as there is place, and ends some
    /// bytes before its end.
    Used { units: u64, rest: u64, is_listed: bool },
    /// A group of small slots, as many as fit.
    Group(Vec<(bool, bool)>),
    /// No header agrees.
    Unclear,
}

/// Groups, their listed blocks, and their blocks in use.
#[derive(Clone, Debug)]
struct Sample {
    memory: Made,
    listed: Vec<Range<u64>>,
    blocks: Vec<Range<u64>>,
    unclear: Vec<Range<u64>>,
    /// All groups' memory.
    whole: Vec<Range<u64>>,
    records: u64,
}

impl Sample {
    fn new() -> Self {
        Self {
            memory: Made::new(),
            listed: Vec::new(),
            blocks: Vec::new(),
            unclear: Vec::new(),
            whole: Vec::new(),
            records: 0,
        }
    }

    /// Address of the next record, in both areas in turn.
    fn record(&mut self) -> u64 {
        let number = self.records;
        self.records += 1;
        AREAS.start + number % 2 * AREA + 24 + number / 2 * RECORD
    }

    /// Puts a group at `at`, in its own pages or in a slot. Returns its end.
    fn put(&mut self, at: u64, class: usize, pages: u64, uses: &[Use]) -> u64 {
        let record = self.record();
        let stride = CLASS_UNITS[class] * UNIT;
        let stride = match (pages, uses) {
            (1.., [_]) => pages * 4096 - UNIT,
            (_, _) => stride,
        };
        let [mut available, mut freed] = [0_u64; 2];
        *self.memory.at(at) = record;
        for (index, slot) in (0..).zip(uses) {
            let start = at + UNIT + index * stride;
            match slot {
                Use::Free(is_available) if *is_available => available |= 1 << index,
                Use::Free(_) => {
                    freed |= 1 << index;
                    self.memory.set_header(start, 255, 0);
                }
                Use::Used {
                    units,
                    rest,
                    is_listed,
                } => {
                    let block = self.put_block(at, index, start..start + stride, (*units, *rest));
                    self.listed.extend(is_listed.then(|| block.clone()));
                    self.blocks.push(block);
                }
                Use::Group(slots) => self.put_group(at, index, start..start + stride, slots),
                Use::Unclear => {
                    self.memory.set_header(start, 255, 0);
                    self.unclear.push(start..start + stride);
                }
            }
        }
        let last = uses.len() as u64 - 1;
        let sizes = last | 1 << 5 | (class as u64) << 6 | pages << 12;
        self.memory.set_record(record, at, available | freed << 32, sizes);
        match pages {
            0 => at + UNIT + (last + 1) * stride,
            pages => at + pages * 4096,
        }
    }

    fn put_block(
        &mut self,
        group: u64,
        index: u64,
        slot: Range<u64>,
        (units, rest): (u64, u64),
    ) -> Range<u64> {
        let units = units.min((slot.end - slot.start) / UNIT - 1);
        let at = slot.start + units * UNIT;
        if units > 0 {
            self.memory.set_header(slot.start, 7 << 5, units);
        }
        let rest = rest.min(slot.end - 4 - at);
        self.memory
            .set_header(at, index | rest.min(5) << 5, (at - group) / UNIT - 1);
        if rest >= 5 {
            *self.memory.at(slot.end - 8) |= rest;
        }
        at..slot.end - 4 - rest
    }

    fn put_group(&mut self, group: u64, index: u64, slot: Range<u64>, slots: &[(bool, bool)]) {
        let place = (slot.end - slot.start) / (3 * UNIT);
        let uses = slots.iter().map(|&(is_used, is_listed)| match is_used {
            true => Use::Used {
                units: 0,
                rest: 5,
                is_listed,
            },
            false => Use::Free(is_listed),
        });
        let uses: Vec<_> = uses
            .take(usize::try_from(place).unwrap().saturating_sub(1))
            .collect();
        if uses.is_empty() {
            self.memory.set_header(slot.start, 255, 0);
            self.unclear.push(slot);
            return;
        }
        self.memory
            .set_header(slot.start, index | 6 << 5, (slot.start - group) / UNIT - 1);
        let end = self.put(slot.start, 2, 0, &uses);
        assert!(end <= slot.end);
    }

    /// Returns true if the 16 bytes at `word` are in a group, and touch no block and no unclear slot.
    fn is_unused(&self, word: u64) -> bool {
        // A block of no bytes has an address, too.
        let touches = |range: &&Range<u64>| range.start < word + 16 && word < range.end.max(range.start + 1);
        let used = self.blocks.iter().chain(&self.unclear).find(touches);
        used.is_none()
            && self
                .whole
                .iter()
                .any(|whole| whole.start <= word && word + 16 <= whole.end)
    }
}

/// Groups in their own pages.
fn sample(groups: &[(usize, Vec<Use>)]) -> Sample {
    let mut sample = Sample::new();
    let mut at = GROUPS.start;
    for (class, uses) in groups {
        let bytes = UNIT + uses.len() as u64 * CLASS_UNITS[*class] * UNIT;
        let end = sample.put(at, *class, bytes.div_ceil(4096), uses);
        sample.whole.push(at..end);
        at = end;
    }
    sample
}

/// Listing of all blocks of musl.
fn listing(blocks: Vec<Block>) -> Listing {
    Listing {
        allocators: vec![Allocator::Musl],
        blocks,
        left: 0,
    }
}

fn found(sample: &Sample) -> Unused {
    find(&sample.memory, &Made::entries(), &heap(&sample.listed))
}

fn has(unused: &Unused, at: u64) -> bool {
    let has = |range: &Range<Avma>| range.start.get() <= at && at < range.end.get();
    unused.ranges.iter().any(has)
}

fn uses() -> impl Strategy<Value = Vec<Use>> {
    let used = (0_u64..40, 0_u64..200, any::<bool>());
    let slot = prop_oneof![
        any::<bool>().prop_map(Use::Free),
        used.prop_map(|(units, rest, is_listed)| Use::Used {
            units: units.saturating_sub(30),
            rest,
            is_listed
        }),
        prop::collection::vec(any::<(bool, bool)>(), 1..8).prop_map(Use::Group),
        Just(Use::Unclear),
    ];
    prop::collection::vec(slot, 1..32)
}

fn groups() -> impl Strategy<Value = Vec<(usize, Vec<Use>)>> {
    prop::collection::vec((0_usize..16, uses()), 0..6)
}

/// Words that are written somewhere: of the state, of records, of groups.
fn damage() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let words = |range: Range<u64>| (range.start / 8..range.end / 8).prop_map(|word| word * 8);
    let groups = || words(GROUPS.start..GROUPS.start + (32 << 10));
    let place = prop_oneof![
        groups(),
        words(AREAS),
        words(AREAS.start..AREAS.start + 400),
        words(CONTEXT..CONTEXT + 80)
    ];
    let value = prop_oneof![
        any::<u64>(),
        Just(0),
        Just(SECRET),
        groups(),
        words(AREAS),
        (any::<u8>(), any::<u16>())
            .prop_map(|(tag, distance)| u64::from(tag) << 40 | u64::from(distance) << 48),
        (0_u64..64, 0_u64..64, 0_u64..20).prop_map(|(last, class, pages)| last | class << 6 | pages << 12),
    ];
    prop::collection::vec((place, value), 0..40)
}

/// Without a state there is no allocator, and nothing is found by words that are no state.
#[test]
fn no_state() {
    let found = |memory: &Made| find(memory, &Made::entries(), &Heap::default());
    let mut memory = Made::new();
    assert_eq!(found(&memory).facts.allocator, Some(Allocator::Musl));
    assert_eq!(find(&memory, &[], &Heap::default()), Unused::default());
    for (at, wrong) in [
        (CONTEXT, SECRET + 1),
        (CONTEXT + 8, 0),
        (CONTEXT + 64, GROUPS.start),
        (AREAS.start, SECRET + 1),
        (AREAS.start + AREA, SECRET + 1),
    ] {
        let right = std::mem::replace(memory.at(at), wrong);
        assert_eq!(found(&memory), Unused::default(), "{at:#x}");
        assert_eq!(blocks_in_use(&memory, &Made::entries()), None, "{at:#x}");
        *memory.at(at) = right;
    }
}

/// A state with the page size as one of its words, as on arm64, is found.
#[test]
fn state_with_size_of_pages() {
    let mut memory = Made::new();
    for at in [0, 8, 56, 64] {
        *memory.at(CONTEXT + at) = 0;
    }
    let [head, tail] = [AREAS.start, AREAS.start + AREA];
    for (at, value) in [(0, SECRET), (8, 4096), (16, 1), (64, head), (72, tail)] {
        *memory.at(CONTEXT + at) = value;
    }
    let unused = find(&memory, &Made::entries(), &Heap::default());
    let range = |start: u64, end: u64| Avma::new(start)..Avma::new(end);
    assert_eq!(
        unused.ranges,
        [
            range(head, tail + AREA),
            range(CONTEXT, CONTEXT + CONTEXT_BYTES + 8)
        ]
    );
}

/// A chain of areas ends where it leads back to an earlier one, or to memory that is no area.
#[test]
fn areas_that_lead_elsewhere() {
    for next in [
        AREAS.start,
        AREAS.start + AREA,
        GROUPS.start,
        0xffff_ffff_ffff_f000,
    ] {
        let mut sample = sample(&[(4, vec![Use::Free(true), Use::Free(false)])]);
        *sample.memory.at(AREAS.start + AREA + 8) = next;
        assert!(has(&found(&sample), GROUPS.start + 32), "{next:#x}");
    }
}

const USED: Use = Use::Used {
    units: 0,
    rest: 0,
    is_listed: true,
};

/// With a group whose head leads elsewhere, a record that contradicts itself, or one of memory that does not
/// exist, all stays a root.
#[test]
fn groups_that_are_none() {
    let right = sample(&[(15, vec![USED, Use::Free(false), USED])]);
    let free = GROUPS.start + 16 + 496 + 64;
    assert!(has(&found(&right), free));
    let record = AREAS.start + 24;
    for (at, wrong, end) in [
        (GROUPS.start, record + RECORD, End::Malformed),
        (record + 16, GROUPS.start + 8, End::Malformed),
        (record + 16, GROUPS.start + 4096, End::Malformed),
        (record + 16, GROUPS.end, End::Border),
        (record + 24, 1 << 40, End::Malformed),
        (record + 32, 2 | 50 << 6 | 1 << 12, End::Malformed),
        (record + 32, 31 | 15 << 6 | 1 << 12, End::Malformed),
        (record + 32, 2 | 15 << 6 | 0x800 << 12, End::Border),
        (record + 32, u64::MAX << 12, End::Malformed),
    ] {
        let mut sample = right.clone();
        *sample.memory.at(at) = wrong;
        let unused = found(&sample);
        assert!(!has(&unused, free), "{at:#x}: {wrong:#x}");
        assert_eq!(unused.facts.ends[&end], 1, "{at:#x}: {wrong:#x}");
    }
}

/// If a listed block crosses the border of a slot, these are no slots. A listed block inside another, as of a
/// pool, proves nothing.
#[test]
fn blocks_across_slots() {
    let mut sample = sample(&[(15, vec![USED, Use::Free(false), USED])]);
    let slot = |index: u64| GROUPS.start + 16 + index * 496;
    sample.listed = std::iter::once(slot(0) + 64..slot(0) + 128).collect();
    assert!(has(&found(&sample), slot(1)));
    sample.listed = std::iter::once(slot(1) - 64..slot(1) + 1).collect();
    let unused = found(&sample);
    assert!(!has(&unused, slot(1) + 64));
    assert_eq!(
        (unused.facts.ends[&End::Distrusted], unused.facts.disagreeing),
        (1, 1)
    );
}

/// A block that begins more than 1 MiB behind the start of its slot, which the header there cannot express,
/// is found; one that can be at either of two places is not.
#[test]
fn blocks_far_behind_the_start() {
    let pages = (GROUPS.end - GROUPS.start) / 4096;
    let first = GROUPS.start + 16;
    let block = GROUPS.start + (2 << 20);
    let mut sample = Sample::new();
    let record = sample.record();
    sample
        .memory
        .set_record(record, GROUPS.start, 0, MAPPED << 6 | pages << 12);
    *sample.memory.at(GROUPS.start) = record;
    let units = (block - first) / 16;
    sample.memory.set_header(first, 7 << 5, units & 0xffff);
    *sample.memory.at(block - 8) = units | 1 << 32 | 5 << 45;
    *sample.memory.at(GROUPS.end - 8) = 12345;
    let end = GROUPS.end - 4 - 12345;
    let found = blocks_in_use(&sample.memory, &Made::entries());
    let expected = Block {
        address: Avma::new(block),
        size: end - block,
        allocated_at: end - block,
        stack: 0,
    };
    assert_eq!(found, Some(listing(vec![expected])));
    let unused = find(&sample.memory, &Made::entries(), &Heap::default());
    let at = [first, block - 8, block, end - 16, end + 8];
    assert_eq!(at.map(|at| has(&unused, at)), [true, true, false, false, true]);

    let other = block + (1 << 20);
    *sample.memory.at(other - 8) = ((other - first) / 16) | 1 << 32;
    assert_eq!(
        blocks_in_use(&sample.memory, &Made::entries()),
        Some(listing(vec![]))
    );
    let unused = find(&sample.memory, &Made::entries(), &Heap::default());
    assert!(!has(&unused, first) && !has(&unused, end + 8));
}

proptest! {
    /// All free memory is found, including the rest of slots around blocks, and none of blocks.
    #[test]
    fn any_groups(groups in groups()) {
        let sample = sample(&groups);
        let unused = found(&sample);
        for word in (GROUPS.start..sample.whole.last().map_or(GROUPS.start, |whole| whole.end)).step_by(8) {
            if sample.is_unused(word) {
                prop_assert!(has(&unused, word), "{word:#x}");
            }
        }
        for used in sample.blocks.iter().chain(&sample.unclear).filter(|used| !used.is_empty()) {
            let overlaps = |range: &Range<Avma>| range.start.get() < used.end && used.start < range.end.get();
            prop_assert!(!unused.ranges.iter().any(overlaps), "{used:x?}");
        }
        prop_assert!(has(&unused, CONTEXT) && has(&unused, AREAS.start) && has(&unused, AREAS.end - 8));
        prop_assert_eq!(unused.facts.agreeing, sample.listed.len() as u64);
        prop_assert!(unused.facts.ends.is_empty(), "{:?}", unused.facts);
    }

    /// All blocks are listed, and nothing else.
    #[test]
    fn any_blocks_in_use(groups in groups()) {
        let mut sample = sample(&groups);
        let Listing { blocks, .. } = blocks_in_use(&sample.memory, &Made::entries()).unwrap();
        let found: Vec<_> = blocks.iter().map(|block| (block.address.get(), block.size)).collect();
        sample.blocks.sort_by_key(|block| block.start);
        let expected: Vec<_> = sample.blocks.iter().map(|block| (block.start, block.end - block.start)).collect();
        prop_assert_eq!(found, expected);
    }

    /// For any contents of memory, the search ends, ranges ascend apart from each other, and none overlaps a
    /// listed block.
    #[test]
    fn any_damage(groups in groups(), damage in damage(), others in prop::collection::vec((GROUPS, 0..3000_u64), 0..5)) {
        let mut sample = sample(&groups);
        for (at, value) in damage {
            *sample.memory.at(at) = value;
        }
        sample.listed.extend(others.iter().map(|(at, size)| *at..at + size));
        let unused = found(&sample);
        prop_assert!(unused.ranges.iter().all(|range| range.start < range.end));
        prop_assert!(unused.ranges.is_sorted_by(|last, next| last.end < next.start));
        for block in heap(&sample.listed).blocks() {
            let block = block.range();
            prop_assert!(unused.ranges.iter().all(|range| range.end <= block.start || block.end <= range.start));
        }
        if let Some(Listing { blocks, .. }) = blocks_in_use(&sample.memory, &Made::entries()) {
            prop_assert!(blocks.is_sorted_by_key(|block| block.address));
        }
        pieces(&sample.memory, &Made::entries());
    }

    /// The pieces fill all groups; those that are blocks are the blocks in use.
    #[test]
    fn any_layout(groups in groups()) {
        let mut sample = sample(&groups);
        let pieces = pieces(&sample.memory, &Made::entries());
        let all: u64 = pieces.iter().map(|piece| piece.range.end - piece.range.start).sum();
        let whole: u64 = sample.whole.iter().map(|whole| whole.end - whole.start).sum();
        prop_assert_eq!(all, whole + 2 * AREA);
        let blocks = pieces.iter().filter_map(|piece| piece.usage.address());
        sample.blocks.sort_by_key(|block| block.start);
        let used: Vec<u64> = sample.blocks.iter().map(|used| used.start).collect();
        prop_assert_eq!(blocks.collect::<Vec<_>>(), used);
        let unclear = pieces.iter().filter(|piece| piece.usage == Usage::Unknown);
        prop_assert_eq!(unclear.count(), sample.unclear.len());
    }
}
