//! Calls that have begun and not ended: the addresses they unmapped, to be put back on failure, and the other
//! calls on the same addresses meanwhile. Pure.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::event::{CallMoment, RegionEvent};
use super::{Region, RegionId, meaning};
use leak_report::model::Amount;
use leak_report::model::RegionCall;

/// Maximum number of crossed ranges that are stored; with more, all addresses count as crossed.
const MAX_CROSSINGS: usize = 64;

/// Ranges that were removed from [`Regions`](super::Regions).
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    pub(super) traced: Vec<(Range<Avma>, RegionId, Region)>,
    /// Ranges of mappings from before the trace.
    pub(super) before: Vec<Range<Avma>>,
    /// Ranges that may have been unmapped already.
    pub(super) doubtful: Vec<Range<Avma>>,
}

impl Taken {
    pub(super) fn add(&mut self, more: Self) {
        self.traced.extend(more.traced);
        self.before.extend(more.before);
        self.doubtful.extend(more.doubtful);
    }

    pub(super) fn at(&self, address: Avma) -> Option<Region> {
        let mut holds = self.traced.iter().filter(|(range, ..)| range.contains(&address));
        holds.next().map(|taken| taken.2)
    }

    pub(super) fn ranges(&self) -> Vec<Range<Avma>> {
        let traced = self.traced.iter().map(|(range, ..)| range);
        traced.chain(&self.before).cloned().collect()
    }

    /// True if a traced mapping in `range` was taken.
    pub(super) fn has_of(&self, range: &Range<Avma>) -> bool {
        let mut traced = self.traced.iter();
        traced.any(|(traced, ..)| overlap(traced, range).is_some())
    }

    pub(super) fn within(&self, range: &Range<Avma>) -> Vec<Range<Avma>> {
        let ranges = self.ranges();
        ranges.iter().filter_map(|taken| overlap(taken, range)).collect()
    }

    /// Amount of traced mappings taken, with pieces as blocks.
    pub(super) fn amount(&self) -> Amount {
        let traced = self.traced.iter().map(|(range, ..)| Amount {
            bytes: bytes(range),
            blocks: 1,
        });
        traced.sum()
    }

    /// True if all of `range` was taken, and was mapped.
    fn was_all_of(&self, range: &Range<Avma>) -> bool {
        let inside = self.within(range);
        let mut doubtful = self.doubtful.iter();
        inside.iter().map(bytes).sum::<u64>() == bytes(range)
            && doubtful.all(|doubtful| overlap(doubtful, range).is_none())
    }
}

/// A move, possibly of several mappings.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub(super) movement: meaning::Move,
    /// Mapped parts of the source, ascending.
    pub(super) parts: Vec<Range<Avma>>,
    /// Parts of the source that may be unmapped.
    pub(super) doubtful: Vec<Range<Avma>>,
}

/// A call in progress.
#[derive(Clone, Debug)]
pub(super) struct InProgress {
    pub(super) call: RegionCall,
    arguments: [u64; 5],
    /// Time of its begin event, or of its end if that was the first one seen.
    pub(super) time: u64,
    /// Ranges that it unmaps.
    pub(super) takes: Vec<Range<Avma>>,
    /// Other ranges that it may act on: a free range that it asked for, all of a move's source and
    /// destination.
    may_touch: Vec<Range<Avma>>,
    /// Range that it unmaps as its purpose, and not to make room.
    pub(super) gives_up: Option<Range<Avma>>,
    pub(super) moved: Option<Moved>,
    pub(super) taken: Taken,
    pub(super) program_break: Option<u64>,
    /// Ranges of this call that another call, which has ended by now, has mapped or unmapped meanwhile.
    pub(super) crossed: Vec<Range<Avma>>,
    /// Set if another `brk` has ended since this one began.
    pub(super) has_crossed_break: bool,
}

impl InProgress {
    /// Stores a call that begins; `takes` are the ranges that it unmaps if all of them are mapped.
    pub(super) fn new(
        event: &RegionEvent,
        takes: Vec<Range<Avma>>,
        moved: Option<Moved>,
        program_break: Option<u64>,
    ) -> Self {
        let gives_up = match event.call {
            RegionCall::Munmap => takes.first().cloned(),
            RegionCall::Mremap => meaning::moves(event).and_then(|old| {
                let mut holds = takes.iter().filter(|range| range.start == old);
                holds.next_back().cloned()
            }),
            RegionCall::Mmap | RegionCall::Brk | RegionCall::Madvise => None,
        };
        let movement = moved.iter().map(|moved| &moved.movement);
        let moved_ranges = movement.flat_map(|movement| {
            let source = &movement.source;
            [source.clone(), movement.moved(source)]
        });
        let may_touch = meaning::asked_for_free(event)
            .into_iter()
            .chain(moved_ranges)
            .collect();
        let takes = match &moved {
            Some(moved) => {
                let covered = moved.parts.iter().filter(|_| !moved.movement.is_in_place());
                let covered = covered.map(|part| moved.movement.moved(part));
                covered.chain(moved.movement.takes.clone()).collect()
            }
            None => takes,
        };
        Self {
            call: event.call,
            arguments: event.arguments,
            time: event.time,
            takes,
            may_touch,
            gives_up,
            moved,
            taken: Taken::default(),
            program_break,
            crossed: Vec::new(),
            has_crossed_break: false,
        }
    }

    /// True if `event` is the end of this call.
    pub(super) fn is_of(&self, event: &RegionEvent) -> bool {
        self.call == event.call && self.arguments == event.arguments
    }

    /// Parts of `range` that this call acts on.
    pub(super) fn touched_in(&self, range: &Range<Avma>) -> Vec<Range<Avma>> {
        let common = self.touches().filter_map(|touched| overlap(touched, range));
        common.collect()
    }

    /// Parts of `range` that were acted on by calls which have ended since this one began.
    pub(super) fn crossed_in(&self, range: &Range<Avma>) -> Vec<Range<Avma>> {
        let common = self.crossed.iter().filter_map(|crossed| overlap(crossed, range));
        common.collect()
    }

    /// Notes that `range` was mapped by another call, and returns the parts that this one may unmap after
    /// that. With `is_placed`, the kernel chose the addresses, which were free: so the parts that this call
    /// has taken had been unmapped by then.
    pub(super) fn cross_given(&mut self, range: &Range<Avma>, is_placed: bool) -> Vec<Range<Avma>> {
        let mut crossed = self.touched_in(range);
        crossed.retain(|common| !(is_placed && self.taken.was_all_of(common)));
        self.note_crossed(crossed.clone());
        crossed
    }

    /// Notes that `other` has ended.
    pub(super) fn cross(&mut self, other: &Self) {
        let own = self.touches();
        let common = own.flat_map(|own| {
            other
                .touches()
                .filter_map(|other_range| overlap(own, other_range))
        });
        self.note_crossed(common.collect());
    }

    fn note_crossed(&mut self, mut crossed: Vec<Range<Avma>>) {
        self.crossed.append(&mut crossed);
        if self.crossed.len() > MAX_CROSSINGS {
            self.crossed = vec![Avma::new(0)..Avma::new(u64::MAX)];
        }
    }

    /// Notes that another `brk` has ended: addresses above the lower of the two breaks may be this one's.
    pub(super) fn cross_break(&mut self, other: &RegionEvent) {
        self.has_crossed_break = true;
        if let CallMoment::Ended { result, .. } = other.moment {
            self.program_break = self.program_break.map(|known| known.min(result));
        }
    }

    /// Ranges that it acts on.
    fn touches(&self) -> impl Iterator<Item = &Range<Avma>> {
        self.takes.iter().chain(&self.may_touch)
    }
}

fn overlap(one: &Range<Avma>, other: &Range<Avma>) -> Option<Range<Avma>> {
    let common = one.start.max(other.start)..one.end.min(other.end);
    (!common.is_empty()).then_some(common)
}

fn bytes(range: &Range<Avma>) -> u64 {
    range.end.offset_from(range.start)
}
