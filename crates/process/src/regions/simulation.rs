//! Random calls of several threads on few pages. Each acts at its own moment between its two events, on the
//! pages that are mapped then.

use proptest::prelude::*;

use super::*;
use crate::maps;

const PAGE: u64 = 4096;
const PAGES: u64 = 10;
const THREADS: usize = 4;
const MAP_FIXED: u64 = 0x10;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_DONTUNMAP: u64 = 4;
const ENOMEM: u64 = 12_u64.wrapping_neg();

/// One step of a thread, or of the reader of the maps.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Begins a call, acts, or ends it, whichever is next.
    Go,
    /// Reads the maps, or takes the last reading into account.
    Read,
}

/// A call that is not over.
#[derive(Clone, Copy, Debug)]
struct Call {
    call: RegionCall,
    arguments: [u64; 5],
    /// Set if the kernel refuses it, after it has unmapped the addresses that it covers or moves to.
    fails: bool,
    result: Option<u64>,
}

impl Call {
    /// Builds a call by numbers of any size.
    fn of(kind: u8, first: u64, count: u64, other: u64, fails: bool) -> Self {
        let (first, count, other) = (first % PAGES, 1 + count % 4, other % PAGES);
        let maps = |flag: u64| [first * PAGE, count * PAGE, 3, 0x22 | flag, 0];
        let moves = |flag: u64| [first * PAGE, count * PAGE, count * PAGE, 3 | flag, other * PAGE];
        let (call, arguments) = match kind % 8 {
            0 => (RegionCall::Mmap, maps(MAP_FIXED)),
            1 | 2 => (RegionCall::Mmap, maps(MAP_FIXED_NOREPLACE)),
            3 | 4 => (RegionCall::Munmap, [first * PAGE, count * PAGE, 0, 0, 0]),
            5 => (RegionCall::Mremap, moves(0)),
            6 => (RegionCall::Mremap, moves(MREMAP_DONTUNMAP)),
            // Shrinks in place.
            _ => (RegionCall::Mremap, [first * PAGE, count * PAGE, PAGE, 0, 0]),
        };
        Self {
            call,
            arguments,
            fails,
            result: None,
        }
    }

    /// Does as the kernel would to the pages that are `mapped`, and returns the result.
    fn act(&self, mapped: &mut [bool]) -> u64 {
        let [first, bytes, _, flags, other] = self.arguments;
        let pages = |first: u64, bytes: u64| {
            let pages = first / PAGE..(first + bytes) / PAGE;
            pages.map(|page| usize::try_from(page).expect("small"))
        };
        let mut source = pages(first, bytes);
        let result = match self.call {
            RegionCall::Munmap => {
                source.for_each(|page| mapped[page] &= self.fails);
                0
            }
            RegionCall::Mmap if flags & MAP_FIXED_NOREPLACE != 0 => {
                if self.fails || source.any(|page| mapped[page]) {
                    return ENOMEM;
                }
                pages(first, bytes).for_each(|page| mapped[page] = true);
                first
            }
            RegionCall::Mmap => {
                source.for_each(|page| mapped[page] = !self.fails);
                first
            }
            RegionCall::Mremap if flags == 0 => {
                if self.fails || !source.next().is_some_and(|page| mapped[page]) {
                    return ENOMEM;
                }
                source.for_each(|page| mapped[page] = false);
                first
            }
            RegionCall::Mremap => {
                let overlaps = first < other + bytes && other < first + bytes;
                if overlaps || !pages(first, bytes).next().is_some_and(|page| mapped[page]) {
                    return ENOMEM;
                }
                let leaves = flags & MREMAP_DONTUNMAP != 0;
                for (from, to) in source.zip(pages(other, bytes)) {
                    if mapped[from] {
                        mapped[to] = !self.fails;
                        mapped[from] = leaves || self.fails;
                    }
                }
                other
            }
            RegionCall::Brk | RegionCall::Madvise => unreachable!("not made here"),
        };
        if self.fails { ENOMEM } else { result }
    }

    fn event(&self, thread: usize) -> RegionEvent {
        let thread = u32::try_from(thread).expect("small");
        let ended = |result| CallMoment::Ended {
            result,
            stack: thread,
        };
        RegionEvent {
            instance: 1,
            thread,
            call: self.call,
            arguments: self.arguments,
            time: 1,
            moment: self.result.map_or(CallMoment::Begins { program_break: 0 }, ended),
        }
    }
}

fn read(mapped: &[bool]) -> Vec<MapsEntry> {
    let pages = (0..).zip(mapped).filter(|(_, is_mapped)| **is_mapped);
    let line = |page: u64| {
        let (start, end) = (page * PAGE, (page + 1) * PAGE);
        format!("{start:x}-{end:x} rw-p 00000000 00:00 0 \n")
    };
    let text: String = pages.map(|(page, _)| line(page)).collect();
    maps::parse(text.as_bytes())
        .map(|entry| entry.expect("valid"))
        .collect()
}

fn step() -> impl Strategy<Value = (Step, usize, Call)> {
    let call = (any::<u8>(), any::<u64>(), any::<u64>(), any::<u64>(), 0_u8..8)
        .prop_map(|(kind, first, count, other, luck)| Call::of(kind, first, count, other, luck == 0));
    let step = prop_oneof![12 => Just(Step::Go), 1 => Just(Step::Read)];
    (step, 0..THREADS, call)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// In whatever order calls cross, when all have ended, each page that is entered as mapped is mapped or
    /// doubtful, and each mapped page is entered.
    #[test]
    fn crossing_calls_leave_no_error_out_of_doubt(steps in prop::collection::vec(step(), 1..120)) {
        let mut regions = Regions::new(1000);
        regions.enter_existing(&[], 0);
        let mut mapped = vec![false; usize::try_from(PAGES + 4).expect("small")];
        let mut threads: [Option<Call>; THREADS] = [None; THREADS];
        let mut reading: Option<(u64, Vec<MapsEntry>)> = None;
        let rest = (0..2 * THREADS).map(|number| (Step::Go, number % THREADS, None));
        for (step, number, call) in steps.into_iter().map(|(step, number, call)| (step, number, Some(call))).chain(rest) {
            let thread = &mut threads[number];
            match (step, thread.as_mut(), call) {
                (Step::Read, ..) => reading = match reading {
                    None => Some((regions.mark(), read(&mapped))),
                    Some((mark, maps)) => {
                        regions.settle(mark, &maps);
                        None
                    }
                },
                (Step::Go, Some(begun), _) if begun.result.is_some() => {
                    regions.apply(&begun.event(number));
                    *thread = None;
                }
                (Step::Go, Some(begun), _) => begun.result = Some(begun.act(&mut mapped)),
                (Step::Go, None, Some(call)) => {
                    regions.apply(&call.event(number));
                    *thread = Some(call);
                }
                (Step::Go, None, None) => {}
            }
        }
        regions.settle(regions.mark(), &read(&mapped));
        let entered: Vec<_> = regions.iter().flat_map(|(range, _)| range.start.get() / PAGE..range.end.get() / PAGE).collect();
        let truth: Vec<_> = (0..).zip(&mapped).filter(|(_, is_mapped)| **is_mapped).map(|(page, _)| page).collect();
        prop_assert_eq!(entered, truth);
    }
}
