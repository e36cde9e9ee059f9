use proptest::prelude::*;

use super::*;
use crate::target::maps;

const PAGE: u64 = 4096;
const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;
const MAP_FIXED: u64 = 0x10;
const RW: u64 = 3;
const ENOMEM: u64 = 12_u64.wrapping_neg();

fn range(first: u64, count: u64) -> Range<Avma> {
    Avma::new(first * PAGE)..Avma::new((first + count) * PAGE)
}

/// Addresses of 48 pages, as an array that says of each what is there.
#[derive(Default)]
struct Model(Vec<Option<u8>>);

impl Model {
    fn pieces(&self) -> Vec<(u64, u8)> {
        let pages = (0..).zip(&self.0);
        pages
            .filter_map(|(page, value)| value.map(|value| (page, value)))
            .collect()
    }
}

fn pages_of(pieces: impl Iterator<Item = (Range<Avma>, u8)>) -> Vec<(u64, u8)> {
    pieces
        .flat_map(|(range, value)| {
            (range.start.get() / PAGE..range.end.get() / PAGE).map(move |page| (page, value))
        })
        .collect()
}

proptest! {
    /// Whatever is filled and taken in whatever order, each page has what an array of pages says; what is returned is
    /// what changed.
    #[test]
    fn intervals_are_an_array_of_pages(
        steps in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..9, any::<u8>()), 0..60)
    ) {
        let mut model = Model(vec![None; 48]);
        let mut intervals = Intervals::default();
        for (is_fill, first, count, value) in steps {
            let pages = usize::try_from(first).expect("small")..usize::try_from(first + count).expect("small");
            let range = range(first, count);
            let whole = model.0[pages.clone()].iter().all(Option::is_some);
            prop_assert_eq!(intervals.covers(&range), whole);
            let before = model.pieces();
            if is_fill {
                let filled = intervals.fill(&range, value);
                for page in model.0[pages].iter_mut().filter(|page| page.is_none()) {
                    *page = Some(value);
                }
                let new: Vec<_> = model.pieces().into_iter().filter(|piece| !before.contains(piece)).collect();
                prop_assert_eq!(pages_of(filled.into_iter().map(|range| (range, value))), new);
            } else {
                let taken = intervals.take(&range);
                model.0[pages].fill(None);
                let left = model.pieces();
                let gone: Vec<_> = before.into_iter().filter(|piece| !left.contains(piece)).collect();
                prop_assert_eq!(pages_of(taken.into_iter()), gone);
            }
            prop_assert_eq!(pages_of(intervals.iter()), model.pieces());
            for (page, value) in (0..).zip(&model.0) {
                prop_assert_eq!(intervals.at(Avma::new(page * PAGE + 1)), *value);
            }
        }
    }
}

/// A process's calls, as they are told.
struct Calls(Regions);

impl Calls {
    fn new() -> Self {
        Self(Regions::new(1000))
    }

    fn event(call: RegionCall, thread: u32, arguments: [u64; 5], moment: CallMoment) -> RegionEvent {
        RegionEvent {
            instance: 1,
            thread,
            call,
            arguments,
            time: 0,
            moment,
        }
    }

    fn begin(&mut self, call: RegionCall, thread: u32, arguments: [u64; 5]) {
        let moment = CallMoment::Begins { program_break: 0 };
        self.0.apply(&Self::event(call, thread, arguments, moment));
    }

    fn end(&mut self, call: RegionCall, thread: u32, arguments: [u64; 5], result: u64) -> Vec<Range<Avma>> {
        let moment = CallMoment::Ended {
            result,
            stack: thread,
        };
        self.0.apply(&Self::event(call, thread, arguments, moment))
    }

    /// Maps pages from `first`, by a call of `thread`, which has the stack of that number.
    fn map(&mut self, thread: u32, first: u64, count: u64, flags: u64) {
        let arguments = [0, count * PAGE, RW, flags, 0];
        self.end(RegionCall::Mmap, thread, arguments, first * PAGE);
    }

    /// Pages that are mapped, with the stack that mapped them.
    fn pages(&self) -> Vec<(u64, u32)> {
        self.0
            .iter()
            .flat_map(|(range, region)| {
                let stack = region.stack;
                (range.start.get() / PAGE..range.end.get() / PAGE).map(move |page| (page, stack))
            })
            .collect()
    }

    fn of(&self, stack: u32) -> RegionTotals {
        let totals = self.0.totals(&[], |_| false);
        let of_stack = totals.into_iter().filter(|((of, _), _)| *of == stack);
        let all: Vec<_> = of_stack.map(|(_, totals)| totals).collect();
        assert!(all.len() < 2, "of one kind");
        all.first().copied().unwrap_or_default()
    }
}

fn amount(count: u64, blocks: u64) -> Amount {
    Amount {
        bytes: count * PAGE,
        blocks,
    }
}

/// What another thread maps at the addresses of an unmapping that has not ended yet stays when it ends.
#[test]
fn a_late_end_does_not_take_what_came_after() {
    let mut calls = Calls::new();
    calls.map(1, 10, 4, MAP_PRIVATE_ANONYMOUS);
    let unmap = [10 * PAGE, 4 * PAGE, 0, 0, 0];
    calls.begin(RegionCall::Munmap, 1, unmap);
    calls.map(2, 10, 4, MAP_PRIVATE_ANONYMOUS);
    calls.end(RegionCall::Munmap, 1, unmap, 0);
    assert_eq!(calls.pages(), [(10, 2), (11, 2), (12, 2), (13, 2)]);
    assert_eq!(calls.of(1).unmapped, amount(4, 1));
    assert_eq!(calls.of(2).mapped, amount(4, 1));
}

/// A failed call gives back all that it took, as if it had not been.
#[test]
fn a_failed_call_leaves_nothing() {
    let mut calls = Calls::new();
    calls.map(1, 10, 2, MAP_PRIVATE_ANONYMOUS);
    calls.map(2, 12, 2, MAP_PRIVATE_ANONYMOUS);
    let unmap = [11 * PAGE, 5 * PAGE, 0, 0, 0];
    calls.begin(RegionCall::Munmap, 1, unmap);
    assert_eq!(calls.pages(), [(10, 1)]);
    assert_eq!(calls.end(RegionCall::Munmap, 1, unmap, ENOMEM), []);
    assert_eq!(calls.pages(), [(10, 1), (11, 1), (12, 2), (13, 2)]);
    for stack in [1, 2] {
        assert_eq!(
            calls.of(stack),
            RegionTotals {
                mapped: amount(2, 1),
                ..RegionTotals::default()
            }
        );
    }
    assert_eq!(calls.0.events().failed, 1);
}

/// A failed call that may have unmapped all the same says so, and what the process's maps do not have goes.
#[test]
fn a_failed_cover_is_compared_with_the_maps() {
    let mut calls = Calls::new();
    calls.map(1, 16, 4, MAP_PRIVATE_ANONYMOUS);
    let cover = [17 * PAGE, 2 * PAGE, RW, MAP_PRIVATE_ANONYMOUS | MAP_FIXED, 0];
    calls.begin(RegionCall::Mmap, 2, cover);
    let doubtful = calls.end(RegionCall::Mmap, 2, cover, ENOMEM);
    assert_eq!(doubtful, [range(17, 2)]);
    assert_eq!(calls.pages().len(), 4);
    let text = b"10000-11000 rw-p 00000000 00:00 0 \n12000-14000 rw-p 00000000 00:00 0 \n";
    let maps: Vec<_> = maps::parse(text).map(|entry| entry.expect("valid")).collect();
    assert_eq!(calls.0.retain_mapped(&doubtful, &maps), PAGE);
    assert_eq!(calls.pages(), [(16, 1), (18, 1), (19, 1)]);
}

/// An end whose beginning was not seen does all that the call did.
#[test]
fn an_end_alone_is_enough() {
    let mut calls = Calls::new();
    calls.map(1, 10, 4, MAP_PRIVATE_ANONYMOUS);
    calls.end(RegionCall::Munmap, 1, [11 * PAGE, PAGE + 1, 0, 0, 0], 0);
    assert_eq!(calls.pages(), [(10, 1), (13, 1)]);
    calls.end(
        RegionCall::Mremap,
        2,
        [13 * PAGE, PAGE, 2 * PAGE, 1, 0],
        20 * PAGE,
    );
    assert_eq!(calls.pages(), [(10, 1), (20, 2), (21, 2)]);
    assert_eq!(calls.of(1).unmapped, amount(3, 0));
}

/// What was mapped before the attach is counted when it goes, and nothing is taken from anything.
#[test]
fn unknown_mappings_are_counted() {
    let mut calls = Calls::new();
    let unmap = [10 * PAGE, PAGE, 0, 0, 0];
    calls.begin(RegionCall::Munmap, 1, unmap);
    calls.end(RegionCall::Munmap, 1, unmap, 0);
    let grow = [30 * PAGE, PAGE, 4 * PAGE, 1, 0];
    calls.begin(RegionCall::Mremap, 2, grow);
    calls.end(RegionCall::Mremap, 2, grow, 40 * PAGE);
    assert_eq!(calls.0.events().unknown, 2);
    assert_eq!(calls.of(1), RegionTotals::default());
    assert_eq!(calls.of(2).mapped, amount(4, 1));
}

/// Lengths are rounded up to pages, and to huge pages of the size that is asked for.
#[test]
fn lengths_are_rounded() {
    const HUGE: u64 = 0x4_0000;
    for (flags, bytes) in [(0, PAGE), (HUGE, 2 << 20), (HUGE | 30 << 26, 1 << 30)] {
        let mut calls = Calls::new();
        let arguments = [0, 1, RW, MAP_PRIVATE_ANONYMOUS | flags, 0];
        calls.end(RegionCall::Mmap, 1, arguments, 1 << 30);
        assert_eq!(calls.of(1).mapped.bytes, bytes, "{flags:#x}");
    }
}

/// Mappings of terabytes are exact, and cut exactly.
#[test]
fn large_mappings_are_exact() {
    let mut calls = Calls::new();
    let pages = (2 << 40) / PAGE;
    calls.map(1, 1 << 20, pages, MAP_PRIVATE_ANONYMOUS);
    calls.end(RegionCall::Munmap, 1, [((1 << 20) + 7) * PAGE, PAGE, 0, 0, 0], 0);
    assert_eq!(calls.of(1).mapped, amount(pages - 1, 1));
}

/// Nonsense that the kernel refuses, or that a program made up, overflows nothing.
#[test]
fn nonsense_is_harmless() {
    let numbers = [0, 1, PAGE, 1 << 47, u64::MAX, u64::MAX - PAGE + 1];
    let mut calls = Calls::new();
    for call in [
        RegionCall::Mmap,
        RegionCall::Mremap,
        RegionCall::Brk,
        RegionCall::Munmap,
    ] {
        for first in numbers {
            for second in numbers {
                let arguments = [first, second, second, first, first];
                for moment in [
                    CallMoment::Begins {
                        program_break: second,
                    },
                    CallMoment::Ended {
                        result: second,
                        stack: 1,
                    },
                ] {
                    calls.0.apply(&Calls::event(call, 1, arguments, moment));
                }
            }
        }
    }
    calls.0.totals(&[], |_| true);
}

/// What a mapping is for follows what it was made as, what can be done with it now, and whose stack it has.
#[test]
fn kinds() {
    let mut calls = Calls::new();
    // One page each, at 1 to 6; the third is a file's, the fourth a thread's stack.
    for (number, flags) in [
        (1, 0x22),
        (2, 0x22),
        (3, 0x02),
        (4, 0x2_0022),
        (5, 0x21),
        (6, 0x22),
    ] {
        calls.map(number, number.into(), 1, flags);
    }
    let text = "1000-2000 rw-p 0 00:00 0 \n2000-3000 ---p 0 00:00 0 \n3000-4000 r--p 0 08:01 5 /a\n\
                4000-5000 ---p 0 00:00 0 \n5000-6000 rw-s 0 00:01 6 /dev/zero (deleted)\n6000-7000 rw-p 0 00:00 0 \n";
    let maps: Vec<_> = maps::parse(text.as_bytes())
        .map(|entry| entry.expect("valid"))
        .collect();
    let totals = calls.0.totals(&maps, |stack| stack == 6);
    let kinds: Vec<_> = totals.keys().copied().collect();
    assert_eq!(
        kinds,
        [
            (1, RegionKind::Anonymous),
            (2, RegionKind::Reservation),
            (3, RegionKind::File),
            (4, RegionKind::ThreadStack),
            (5, RegionKind::Shared),
            (6, RegionKind::Allocator),
        ]
    );
}

/// Of a mapping that is of two kinds by now, each kind has its bytes, and the larger one the block.
#[test]
fn a_mapping_of_two_kinds() {
    let mut calls = Calls::new();
    calls.map(1, 16, 5, MAP_PRIVATE_ANONYMOUS);
    let text = "10000-13000 rw-p 0 00:00 0 \n13000-15000 ---p 0 00:00 0 \n";
    let maps: Vec<_> = maps::parse(text.as_bytes())
        .map(|entry| entry.expect("valid"))
        .collect();
    let totals = calls.0.totals(&maps, |_| false);
    assert_eq!(totals[&(1, RegionKind::Anonymous)].mapped, amount(3, 1));
    assert_eq!(totals[&(1, RegionKind::Reservation)].mapped, amount(2, 0));
}
