use proptest::prelude::*;

use super::*;
use crate::maps;

const PAGE: u64 = 4096;
const MAP_PRIVATE_ANONYMOUS: u64 = 0x22;
const MAP_FIXED: u64 = 0x10;
const RW: u64 = 3;
const ENOMEM: u64 = 12_u64.wrapping_neg();

fn range(first: u64, count: u64) -> Range<Avma> {
    Avma::new(first * PAGE)..Avma::new((first + count) * PAGE)
}

/// An array of 48 pages with the value of each.
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
    /// After any sequence of fills and takes, each page has the value that an array of pages has; the
    /// returned ranges are those that changed.
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

fn maps_of(mapped: &[(u64, u64)]) -> Vec<MapsEntry> {
    let line = |&(first, count): &(u64, u64)| {
        let (start, end) = (first * PAGE, (first + count) * PAGE);
        format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n")
    };
    let text: String = mapped.iter().map(line).collect();
    maps::parse(text.as_bytes())
        .map(|entry| entry.expect("valid"))
        .collect()
}

/// A process's calls, applied to its [`Regions`] as events.
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
            time: 1,
            moment,
        }
    }

    fn begin(&mut self, call: RegionCall, thread: u32, arguments: [u64; 5]) {
        let moment = CallMoment::Begins { program_break: 0 };
        self.0.apply(&Self::event(call, thread, arguments, moment));
    }

    fn end(&mut self, call: RegionCall, thread: u32, arguments: [u64; 5], result: u64) {
        let moment = CallMoment::Ended {
            result,
            stack: thread,
        };
        self.0.apply(&Self::event(call, thread, arguments, moment));
    }

    fn call(&mut self, call: RegionCall, thread: u32, arguments: [u64; 5], result: u64) {
        self.begin(call, thread, arguments);
        self.end(call, thread, arguments, result);
    }

    /// Settles with the mapped pages, as pairs of the first and their number.
    fn settle(&mut self, mark: u64, mapped: &[(u64, u64)]) -> Amount {
        self.0.settle(mark, &maps_of(mapped))
    }

    /// Maps pages from `first` on, by a call of `thread`, with the thread's number as the stack.
    fn map(&mut self, thread: u32, first: u64, count: u64, flags: u64) {
        let arguments = [0, count * PAGE, RW, flags, 0];
        self.end(RegionCall::Mmap, thread, arguments, first * PAGE);
    }

    /// Mapped pages, each with the stack that mapped it.
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

/// A mapping that another thread makes at the addresses of an unfinished unmapping stays when the latter
/// ends.
#[test]
fn late_end_keeps_later_mappings() {
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

/// A failed call puts back all that it took, as if it had not been made.
#[test]
fn a_failed_call_leaves_nothing() {
    let mut calls = Calls::new();
    calls.map(1, 10, 2, MAP_PRIVATE_ANONYMOUS);
    calls.map(2, 12, 2, MAP_PRIVATE_ANONYMOUS);
    let unmap = [11 * PAGE, 5 * PAGE, 0, 0, 0];
    calls.begin(RegionCall::Munmap, 1, unmap);
    assert_eq!(calls.pages(), [(10, 1)]);
    calls.end(RegionCall::Munmap, 1, unmap, ENOMEM);
    assert!(!calls.0.has_doubts());
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

/// After a failed call that may have unmapped addresses nevertheless, these are doubtful, and those that the
/// maps do not have are removed.
#[test]
fn a_failed_cover_is_compared_with_the_maps() {
    let mut calls = Calls::new();
    calls.map(1, 16, 4, MAP_PRIVATE_ANONYMOUS);
    let cover = [17 * PAGE, 2 * PAGE, RW, MAP_PRIVATE_ANONYMOUS | MAP_FIXED, 0];
    calls.begin(RegionCall::Mmap, 2, cover);
    calls.end(RegionCall::Mmap, 2, cover, ENOMEM);
    assert_eq!(calls.0.in_doubt(), 1);
    assert_eq!(calls.pages().len(), 4);
    assert_eq!(calls.settle(calls.0.mark(), &[(16, 1), (18, 2)]), amount(1, 1));
    assert_eq!(calls.pages(), [(16, 1), (18, 1), (19, 1)]);
}

fn covers(first: u64, count: u64) -> [u64; 5] {
    [
        first * PAGE,
        count * PAGE,
        RW,
        MAP_PRIVATE_ANONYMOUS | MAP_FIXED,
        0,
    ]
}

/// Arguments of a move of `count` pages to a given place.
fn moves(from: u64, count: u64, to: u64) -> [u64; 5] {
    [from * PAGE, count * PAGE, count * PAGE, 3, to * PAGE]
}

/// Maps do not settle pages that a failed call had unmapped, and that a call not applied yet had mapped again
/// when the maps were read: these pages are doubtful at the addresses to which they were moved in between.
#[test]
fn later_maps_do_not_settle_touched_pages() {
    let mut calls = Calls::new();
    calls.0.enter_existing(&[], 0);
    calls.map(1, 16, 4, MAP_PRIVATE_ANONYMOUS);
    // The call unmaps the second page, and fails.
    calls.call(RegionCall::Mmap, 2, covers(17, 1), ENOMEM);
    let mark = calls.0.mark();
    // Meanwhile all four pages are moved, of which three are mapped, and the second is mapped again.
    let read = [(17, 1), (32, 1), (34, 2)];
    calls.call(RegionCall::Mremap, 3, moves(16, 4, 32), 32 * PAGE);
    calls.call(RegionCall::Mmap, 4, covers(17, 1), 17 * PAGE);
    assert_eq!(calls.settle(mark, &read), Amount::default());
    assert_eq!(calls.pages(), [(17, 4), (32, 3), (33, 3), (34, 3), (35, 3)]);
    assert_eq!(calls.0.in_doubt(), 1);
    assert_eq!(calls.settle(calls.0.mark(), &read), amount(1, 1));
    assert_eq!(calls.pages(), [(17, 4), (32, 3), (34, 3), (35, 3)]);
    assert!(!calls.0.has_doubts());
}

/// Doubt moves along with the addresses, and ends with an unambiguous call.
#[test]
fn doubt_is_moved_and_ends() {
    let mut calls = Calls::new();
    calls.0.enter_existing(&[], 0);
    calls.map(1, 16, 4, MAP_PRIVATE_ANONYMOUS);
    calls.call(RegionCall::Mmap, 2, covers(17, 2), ENOMEM);
    calls.call(RegionCall::Mremap, 3, moves(16, 4, 32), 32 * PAGE);
    calls.call(RegionCall::Mremap, 3, moves(32, 4, 48), 48 * PAGE);
    assert_eq!(calls.0.in_doubt(), 1);
    calls.call(RegionCall::Mmap, 4, covers(49, 1), 49 * PAGE);
    let mark = calls.0.mark();
    assert_eq!(calls.settle(mark, &[(48, 2), (51, 1)]), amount(1, 1));
    assert_eq!(calls.pages(), [(48, 3), (49, 4), (51, 3)]);
}

/// Mappings in the destination of a move stay where the source has a gap: gaps are not moved.
#[test]
fn gaps_are_not_moved() {
    let mut calls = Calls::new();
    // The third page is from before the trace.
    calls.0.enter_existing(&maps_of(&[(18, 1)]), 0);
    calls.map(1, 16, 1, MAP_PRIVATE_ANONYMOUS);
    calls.map(2, 32, 6, MAP_PRIVATE_ANONYMOUS);
    calls.call(RegionCall::Mremap, 3, moves(16, 5, 32), 32 * PAGE);
    assert_eq!(
        calls.pages(),
        [(32, 3), (33, 2), (34, 3), (35, 2), (36, 2), (37, 2)]
    );
    assert_eq!(calls.of(3).mapped, amount(2, 1));
    assert!(!calls.0.has_doubts());
}

/// Either of two concurrent calls on the same addresses can be the first: the mapping that one of them made
/// is doubtful until the other has ended and the maps are read.
#[test]
fn crossing_calls_are_doubtful() {
    let unmap = [10 * PAGE, 4 * PAGE, 0, 0, 0];
    // All orders of their begins and ends.
    for order in 0..4 {
        let mut calls = Calls::new();
        calls.0.enter_existing(&[], 0);
        calls.map(1, 10, 4, MAP_PRIVATE_ANONYMOUS);
        let begin = |calls: &mut Calls, thread| match thread {
            2 => calls.begin(RegionCall::Munmap, 2, unmap),
            _ => calls.begin(RegionCall::Mmap, 3, covers(10, 2)),
        };
        let end = |calls: &mut Calls, thread| match thread {
            2 => calls.end(RegionCall::Munmap, 2, unmap, 0),
            _ => calls.end(RegionCall::Mmap, 3, covers(10, 2), 10 * PAGE),
        };
        let (first, last) = (2 + order % 2, 2 + order / 2);
        begin(&mut calls, first);
        begin(&mut calls, 5 - first);
        end(&mut calls, 5 - last);
        // Read while the other is in progress: it may act after that.
        calls.settle(calls.0.mark(), &[(10, 2)]);
        end(&mut calls, last);
        assert_eq!(calls.pages(), [(10, 3), (11, 3)], "{order}");
        assert_eq!(calls.0.in_doubt(), 1, "{order}");
        assert_eq!(calls.settle(calls.0.mark(), &[]), amount(2, 1), "{order}");
        assert_eq!(calls.pages(), [], "{order}");
    }
}

/// A mapping that the kernel places at addresses which an unfinished call unmaps is not doubtful.
#[test]
fn mappings_placed_by_the_kernel_are_not_doubtful() {
    let mut calls = Calls::new();
    calls.0.enter_existing(&maps_of(&[(14, 1)]), 0);
    calls.map(1, 10, 4, MAP_PRIVATE_ANONYMOUS);
    let unmap = [10 * PAGE, 5 * PAGE, 0, 0, 0];
    calls.begin(RegionCall::Munmap, 1, unmap);
    calls.map(2, 12, 3, MAP_PRIVATE_ANONYMOUS);
    calls.end(RegionCall::Munmap, 1, unmap, 0);
    assert!(!calls.0.has_doubts());
    assert_eq!(calls.pages(), [(12, 2), (13, 2), (14, 2)]);
}

/// When a break is lowered and raised at once, the higher call gets the addresses above the lower break.
#[test]
fn breaks_that_cross() {
    for lowered_first in [true, false] {
        let mut calls = Calls::new();
        calls.0.enter_existing(&[], 0);
        let mut brk = |thread, to: u64, ended| {
            let arguments = [to * PAGE, 0, 0, 0, 0];
            let moment = match ended {
                true => CallMoment::Ended {
                    result: to * PAGE,
                    stack: thread,
                },
                false => CallMoment::Begins {
                    program_break: if thread == 1 { 10 * PAGE } else { 14 * PAGE },
                },
            };
            calls
                .0
                .apply(&Calls::event(RegionCall::Brk, thread, arguments, moment));
        };
        brk(1, 14, false);
        brk(1, 14, true);
        brk(2, 12, false);
        brk(3, 16, false);
        for thread in if lowered_first { [2, 3] } else { [3, 2] } {
            brk(thread, if thread == 2 { 12 } else { 16 }, true);
        }
        // The kernel lowered it first.
        calls.settle(calls.0.mark(), &[(10, 6)]);
        let pages: Vec<_> = calls.pages().iter().map(|&(page, _)| page).collect();
        assert_eq!(pages, (10..16).collect::<Vec<_>>(), "{lowered_first}");
    }
}

/// An end without its begin has all effects of the call.
#[test]
fn end_without_begin_has_all_effects() {
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

/// Unmapping a mapping from before the attach is counted, and changes no totals.
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

/// Lengths are rounded up to pages, and to huge pages of the requested size.
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

/// Mappings of terabytes are counted and cut exactly.
#[test]
fn large_mappings_are_exact() {
    let mut calls = Calls::new();
    let pages = (2 << 40) / PAGE;
    calls.map(1, 1 << 20, pages, MAP_PRIVATE_ANONYMOUS);
    calls.end(RegionCall::Munmap, 1, [((1 << 20) + 7) * PAGE, PAGE, 0, 0, 0], 0);
    assert_eq!(calls.of(1).mapped, amount(pages - 1, 1));
}

/// Arguments that the kernel refuses, or that a program made up, do not overflow.
#[test]
fn extreme_arguments_do_not_overflow() {
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

/// The kind of a mapping depends on its call, on its access rights now, and on whether its stack is an
/// allocator's.
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

/// A mapping with two kinds by now adds to the bytes of each, and counts as a block of the larger one.
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
