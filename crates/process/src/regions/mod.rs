//! Mappings of a process that its calls have made since tracing began, until they are unmapped.
//!
//! Pure: [`RegionEvent`]s in, totals per stack out. An address belongs to the call that mapped it last, even
//! if the mapping was cut since: a mapping ends when its last page is unmapped. Mappings from before tracing
//! began belong to no call; calls that unmap only these are counted.
//!
//! Addresses that a call unmaps are removed when the call begins, since another thread can map there before
//! it has ended; they are put back if the call fails. Addresses that a call maps are entered when it has
//! ended. Another thread can unmap there earlier if it knows the addresses, so calls at given addresses are
//! in progress from their begin events on. Like `realloc`, `mremap` makes a new mapping, all of which belongs
//! to its caller.
//!
//! # Doubtful addresses
//!
//! Events do not show which addresses a failed call has unmapped nevertheless, nor which of two calls on the
//! same addresses acted first if each began before the other had ended. Such addresses are kept as mapped,
//! and are *doubtful* from then on, wherever they are moved to, until an unambiguous call maps or unmaps
//! them, or they are compared with the process's maps. Maps are read while calls go on: they prove nothing
//! about addresses that a call has touched after the last applied event. So a reader of the maps stores
//! [`Regions::mark`] before, applies all calls that had begun by the time of reading, and then
//! [settles](Regions::settle) the addresses that were doubtful at the mark and still are.

mod event;
pub mod intervals;
mod kind;
mod meaning;
mod progress;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::{AddAssign, Range};

use unwind_tables::addr::Avma;

use crate::maps::MapsEntry;
pub use event::{CallMoment, REGION_ARGUMENTS, RegionEvent};
use intervals::Intervals;
use leak_report::model::RegionCall;
use leak_report::model::{Amount, RegionKind};
pub(super) use meaning::has_failed;
use memleak_base::pages;
use progress::{InProgress, Moved, Taken};

/// A mapping that a call made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Index of the call's stack record.
    pub stack: u32,
    /// Kind that was requested.
    pub kind: RegionKind,
    /// Nanoseconds of `CLOCK_MONOTONIC` at the call.
    pub since: u64,
    /// Size of its pages in bytes.
    page: u64,
    /// Bytes of it that are still mapped.
    left: u64,
}

/// Identifies a mapping; never reused.
type RegionId = u64;

/// Totals of all mappings of one stack and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionTotals {
    pub mapped: Amount,
    /// Unmapped since. A mapping that is cut counts as a block until its last page is unmapped.
    pub unmapped: Amount,
    /// Not recorded, as there were too many pieces.
    pub lost: Amount,
}

impl AddAssign for RegionTotals {
    fn add_assign(&mut self, more: Self) {
        self.mapped = self.mapped + more.mapped;
        self.unmapped = self.unmapped + more.unmapped;
        self.lost = self.lost + more.lost;
    }
}

/// Counts of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionEvents {
    /// All ended calls.
    pub calls: u64,
    /// Calls that the kernel refused.
    pub failed: u64,
    /// Calls that unmapped no known mapping.
    pub unknown: u64,
}

/// The mappings of one process.
#[derive(Debug)]
pub struct Regions {
    live: Intervals<RegionId>,
    regions: HashMap<RegionId, Region>,
    next: RegionId,
    /// Addresses that were mapped before the trace, and still are.
    before: Intervals<()>,
    /// Timestamp of the maps that `before` was read from, on the clock of the events; `u64::MAX` before that.
    known_since: u64,
    /// Addresses that may be unmapped although they are entered as mapped, each with the number of the event
    /// that made it doubtful.
    doubtful: Intervals<u64>,
    /// Number of events applied.
    taken_in: u64,
    /// Calls in progress, by thread.
    in_progress: HashMap<u32, InProgress>,
    unmapped: BTreeMap<(u32, RegionKind), Amount>,
    lost: BTreeMap<(u32, RegionKind), Amount>,
    events: RegionEvents,
    /// Maximum number of pieces.
    capacity: usize,
}

impl Regions {
    /// Creates an empty state with at most `capacity` pieces.
    pub fn new(capacity: usize) -> Self {
        Self {
            live: Intervals::default(),
            regions: HashMap::new(),
            next: 0,
            before: Intervals::default(),
            known_since: u64::MAX,
            doubtful: Intervals::default(),
            taken_in: 0,
            in_progress: HashMap::new(),
            unmapped: BTreeMap::new(),
            lost: BTreeMap::new(),
            events: RegionEvents::default(),
            capacity,
        }
    }

    /// Counts of the calls so far.
    pub fn events(&self) -> RegionEvents {
        self.events
    }

    /// All pieces of mappings, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Range<Avma>, &Region)> {
        let pieces = self.live.iter();
        pieces.filter_map(|(range, id)| Some((range, self.regions.get(&id)?)))
    }

    /// Enters the process's maps as of `time`, on the clock of the events: mappings that belong to no call
    /// were there before.
    pub fn enter_existing(&mut self, maps: &[MapsEntry], time: u64) {
        for entry in maps {
            for free in self.live.gaps(&entry.range) {
                self.before.fill(&free, ());
            }
        }
        self.known_since = time;
    }

    /// True once [`Regions::enter_existing`] was called.
    pub fn has_existing(&self) -> bool {
        self.known_since < u64::MAX
    }

    /// Applies an event of a call.
    pub fn apply(&mut self, event: &RegionEvent) {
        self.taken_in += 1;
        match event.moment {
            CallMoment::Begins { program_break } => {
                let program_break = (event.call == RegionCall::Brk).then_some(program_break);
                let progress = self.begin(event, program_break);
                self.in_progress.insert(event.thread, progress);
            }
            CallMoment::Ended { stack, .. } => {
                self.events.calls += 1;
                let begun = self.in_progress.remove(&event.thread);
                let begun = begun.filter(|begun| begun.is_of(event));
                if meaning::has_failed(event) {
                    self.events.failed += 1;
                    self.fail(event, begun);
                } else {
                    self.succeed(event, stack, begun);
                }
            }
        }
    }

    fn begin(&mut self, event: &RegionEvent, program_break: Option<u64>) -> InProgress {
        // These depend on what is mapped: compute them before anything is unmapped.
        let takes = meaning::taken(event, |address| self.page_at(address));
        let page = self.page_at(Avma::new(event.arguments[0]));
        let moved = meaning::moved_as_is(event, page).map(|movement| self.moved(event, movement));
        let mut progress = InProgress::new(event, takes, moved, program_break);
        for range in &progress.takes {
            progress.taken.add(self.unmap(range));
        }
        progress
    }

    /// Computes the parts that a move moves: all mapped parts of its source, doubtful where they may be
    /// unmapped.
    fn moved(&self, event: &RegionEvent, movement: meaning::Move) -> Moved {
        let source = &movement.source;
        let mut parts = Intervals::default();
        for (range, _) in self.live.within(source) {
            parts.fill(&range, ());
        }
        for (range, ()) in self.before.within(source) {
            parts.fill(&range, ());
        }
        let mut doubtful: Vec<_> = self.doubtful.within(source).map(|(range, _)| range).collect();
        let others = self.in_progress.values();
        let mut unknown: Vec<_> = others.flat_map(|other| other.taken.within(source)).collect();
        // The kernel refuses to move a range that does not begin with a mapping.
        if event.time <= self.known_since || parts.at(source.start).is_none() {
            unknown.push(source.clone());
        }
        for range in unknown {
            doubtful.extend(parts.fill(&range, ()));
        }
        let parts = parts.iter().map(|(range, ())| range).collect();
        Moved {
            movement,
            parts,
            doubtful,
        }
    }

    /// Returns the ranges that a move has mapped, and those of them that may be unmapped.
    fn given_by_move(&self, begun: &InProgress, moved: &Moved) -> (Vec<Range<Avma>>, Vec<Range<Avma>>) {
        let crossed = self.crossed_by_move(begun, moved);
        let mut given = Intervals::default();
        for part in &moved.parts {
            given.fill(&moved.movement.moved(part), ());
        }
        for range in crossed.iter().flat_map(|range| self.live.gaps(range)) {
            given.fill(&range, ());
        }
        let doubtful = moved.doubtful.iter().map(|range| moved.movement.moved(range));
        let doubtful = doubtful.chain(crossed).collect();
        (given.iter().map(|(range, ())| range).collect(), doubtful)
    }

    /// Destinations of the parts of the source that other calls may have mapped or unmapped before the move.
    fn crossed_by_move(&self, begun: &InProgress, moved: &Moved) -> Vec<Range<Avma>> {
        let others = self.in_progress.values();
        let crossed = others.flat_map(|other| other.touched_in(&moved.movement.source));
        let crossed = crossed.chain(begun.crossed_in(&moved.movement.source));
        crossed.map(|range| moved.movement.moved(&range)).collect()
    }

    fn fail(&mut self, event: &RegionEvent, begun: Option<InProgress>) {
        let is_sure = matches!(event.call, RegionCall::Munmap | RegionCall::Brk);
        let Some(begun) = begun else {
            // Its begin event was not seen, so nothing was removed.
            let takes = meaning::taken(event, |address| self.page_at(address));
            for range in takes.iter().filter(|_| !is_sure) {
                self.doubt(range);
            }
            return;
        };
        self.put_back(&begun.taken);
        for range in begun.taken.ranges() {
            if !is_sure {
                self.doubt(&range);
            }
            self.doubt_crossed(event, &range);
        }
        let moved = begun.moved.iter();
        let crossed: Vec<_> = moved
            .flat_map(|moved| self.crossed_by_move(&begun, moved))
            .collect();
        for range in begun.taken.doubtful.iter().chain(&crossed) {
            self.doubt(range);
        }
        self.cross(&begun);
    }

    fn succeed(&mut self, event: &RegionEvent, stack: u32, begun: Option<InProgress>) {
        // The mapping that is moved, which was removed at the begin event.
        let old = meaning::moves(event).and_then(|old| {
            let in_progress = begun.iter().chain(self.in_progress.values());
            let mut taken = in_progress.filter_map(|call| call.taken.at(old));
            taken.next().or_else(|| self.at(old))
        });
        let begun = match begun {
            Some(begun) => begun,
            None => self.begin(event, None),
        };
        if begun.time <= self.known_since {
            // The maps were read while the call was in progress.
            for range in &begun.takes {
                self.before.take(range);
            }
        }
        if begun
            .gives_up
            .as_ref()
            .is_some_and(|range| !begun.taken.has_of(range))
        {
            self.events.unknown += 1;
        }
        let page_at = |_| old.map_or(pages::bytes(), |old| old.page);
        let (given, doubtful) = match &begun.moved {
            Some(moved) => self.given_by_move(&begun, moved),
            None => {
                let given = meaning::given(event, begun.program_break, page_at);
                (Vec::from_iter(given), Vec::new())
            }
        };
        if !given.is_empty() {
            self.map(&given, Self::asked_for(event, old, stack));
        }
        for range in &doubtful {
            self.doubt(range);
        }
        for range in &given {
            self.doubt_crossed(event, range);
        }
        if event.call == RegionCall::Brk {
            self.cross_breaks(event, &begun);
        }
        self.cross(&begun);
    }

    fn asked_for(event: &RegionEvent, old: Option<Region>, stack: u32) -> Region {
        let [_, _, protection, flags, _] = event.arguments;
        let (kind, page) = match (event.call, old) {
            (RegionCall::Mmap, _) => (kind::asked_for(protection, flags), meaning::page_of(flags)),
            (RegionCall::Mremap, Some(old)) => (old.kind, old.page),
            (RegionCall::Mremap | RegionCall::Brk | RegionCall::Munmap | RegionCall::Madvise, _) => {
                (RegionKind::Anonymous, pages::bytes())
            }
        };
        Region {
            stack,
            kind,
            since: event.time,
            page,
            left: 0,
        }
    }

    fn at(&self, address: Avma) -> Option<Region> {
        self.regions.get(&self.live.at(address)?).copied()
    }

    fn page_at(&self, address: Avma) -> u64 {
        self.at(address).map_or(pages::bytes(), |region| region.page)
    }

    /// Enters a new mapping of one or more pieces. Entries that are still at its addresses were unmapped by a
    /// call that was not seen.
    fn map(&mut self, pieces: &[Range<Avma>], region: Region) {
        for range in pieces {
            self.unmap(range);
        }
        let bytes = pieces.iter().map(|range| range.end.offset_from(range.start));
        let bytes = bytes.fold(0, u64::saturating_add);
        if self.live.len() >= self.capacity {
            add(
                self.lost.entry((region.stack, region.kind)).or_default(),
                Amount { bytes, blocks: 1 },
            );
            return;
        }
        let id = self.next;
        self.next += 1;
        for range in pieces {
            self.live.fill(range, id);
        }
        self.regions.insert(
            id,
            Region {
                left: bytes,
                ..region
            },
        );
    }

    fn unmap(&mut self, range: &Range<Avma>) -> Taken {
        let doubtful = self.doubtful.take(range);
        let doubtful = doubtful.into_iter().map(|(range, _)| range).collect();
        let before = self.before.take(range);
        let taken = self.live.take(range);
        let mut traced = Vec::with_capacity(taken.len());
        for (range, id) in taken {
            let Some(region) = self.regions.get_mut(&id) else {
                continue;
            };
            let bytes = range.end.offset_from(range.start);
            region.left = region.left.saturating_sub(bytes);
            let region = *region;
            let unmapped = self.unmapped.entry((region.stack, region.kind)).or_default();
            let is_gone = region.left == 0;
            let blocks = u64::from(is_gone);
            add(unmapped, Amount { bytes, blocks });
            if is_gone {
                self.regions.remove(&id);
            }
            traced.push((range, id, region));
        }
        let before = before.into_iter().map(|(range, ())| range).collect();
        Taken {
            traced,
            before,
            doubtful,
        }
    }

    /// Undoes [`Regions::unmap`] where nothing else has been mapped since.
    fn put_back(&mut self, taken: &Taken) {
        for (range, id, region) in &taken.traced {
            self.put_back_ours(range, *id, region);
        }
        for range in &taken.before {
            for free in self.live.gaps(range) {
                self.before.fill(&free, ());
            }
        }
    }

    fn put_back_ours(&mut self, range: &Range<Avma>, id: RegionId, region: &Region) {
        let free = self.live.fill(range, id);
        let bytes: u64 = free.iter().map(|part| part.end.offset_from(part.start)).sum();
        if bytes == 0 {
            return;
        }
        let unmapped = self.unmapped.entry((region.stack, region.kind)).or_default();
        unmapped.bytes = unmapped.bytes.saturating_sub(bytes);
        let left = self.regions.entry(id).or_insert_with(|| {
            unmapped.blocks = unmapped.blocks.saturating_sub(1);
            Region { left: 0, ..*region }
        });
        left.left += bytes;
    }

    fn doubt(&mut self, range: &Range<Avma>) {
        self.doubtful.take(range);
        self.doubtful.fill(range, self.taken_in);
    }

    /// Marks all addresses as doubtful.
    pub fn doubt_all(&mut self) {
        self.doubt(&(Avma::new(0)..Avma::new(u64::MAX)));
    }

    /// Marks as doubtful the parts of `range`, which an ended call has mapped or put back, that other calls
    /// may have unmapped since.
    fn doubt_crossed(&mut self, event: &RegionEvent, range: &Range<Avma>) {
        let is_placed = meaning::is_placed(event);
        let others = self.in_progress.values_mut();
        let crossed: Vec<_> = others
            .flat_map(|other| other.cross_given(range, is_placed))
            .collect();
        for range in crossed {
            self.doubt(&range);
        }
    }

    /// Marks the addresses that an ended call shares with others in progress as doubtful: it is not known
    /// which acted first.
    fn cross(&mut self, ended: &InProgress) {
        for other in self.in_progress.values_mut() {
            other.cross(ended);
        }
        for range in &ended.crossed {
            self.doubt(range);
        }
    }

    /// Handles two calls of `brk` in progress at once: one may have raised the break that the other had
    /// lowered.
    fn cross_breaks(&mut self, event: &RegionEvent, ended: &InProgress) {
        if ended.has_crossed_break {
            self.put_back(&ended.taken);
            for range in ended.taken.ranges() {
                self.doubt(&range);
            }
        }
        let others = self.in_progress.values_mut();
        for other in others.filter(|other| other.call == RegionCall::Brk) {
            other.cross_break(event);
        }
    }

    /// Number of events applied so far, for [`Regions::settle`].
    pub fn mark(&self) -> u64 {
        self.taken_in
    }

    /// True if some addresses need a comparison with the process's maps.
    pub fn has_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Number of pieces that may be unmapped.
    pub fn in_doubt(&self) -> usize {
        let doubtful = self.doubtful.iter();
        doubtful.map(|(range, _)| self.live.within(&range).count()).sum()
    }

    /// Removes the addresses that were doubtful at the mark and still are, unless they are in `maps`, the
    /// process's own (ascending). The maps must be read after the mark, and all calls that had begun by then
    /// must have been applied since. Returns the removed amount, with pieces as blocks.
    pub fn settle(&mut self, mark: u64, maps: &[MapsEntry]) -> Amount {
        let doubtful = self.doubtful.iter();
        let due: Vec<_> = doubtful.filter(|&(_, since)| since <= mark).collect();
        let mut gone = Amount::default();
        for (range, _) in due {
            self.doubtful.take(&range);
            let mut from = range.start;
            let first = maps.partition_point(|entry| entry.range.end <= range.start);
            let inside = maps.get(first..).unwrap_or_default().iter();
            for entry in inside.take_while(|entry| entry.range.start < range.end) {
                add(&mut gone, self.unmap(&(from..entry.range.start)).amount());
                from = entry.range.end;
            }
            add(&mut gone, self.unmap(&(from..range.end)).amount());
        }
        gone
    }

    /// Totals by stack and kind. `maps` are the process's own now, ascending; without them, mappings keep the
    /// kind that was requested. `is_allocators` returns whether a stack is an allocator's.
    pub fn totals(
        &self,
        maps: &[MapsEntry],
        mut is_allocators: impl FnMut(u32) -> bool,
    ) -> BTreeMap<(u32, RegionKind), RegionTotals> {
        let mut totals: BTreeMap<(u32, RegionKind), RegionTotals> = BTreeMap::new();
        let mut kind_of = |stack, kind: RegionKind| {
            let can_be = matches!(kind, RegionKind::Anonymous | RegionKind::Reservation);
            if can_be && is_allocators(stack) {
                RegionKind::Allocator
            } else {
                kind
            }
        };
        for (&(stack, kind), &unmapped) in &self.unmapped {
            let entry = totals.entry((stack, kind_of(stack, kind))).or_default();
            add(&mut entry.unmapped, unmapped);
        }
        for (&(stack, kind), &lost) in &self.lost {
            let entry = totals.entry((stack, kind_of(stack, kind))).or_default();
            add(&mut entry.lost, lost);
        }
        // A mapping with several kinds by now counts as a block of the kind with the most bytes.
        let mut kinds: HashMap<RegionId, BTreeMap<RegionKind, u64>> = HashMap::new();
        for (range, id) in self.live.iter() {
            let Some(region) = self.regions.get(&id) else {
                continue;
            };
            let kinds = kinds.entry(id).or_default();
            let mut rest = range.end.offset_from(range.start);
            for (bytes, entry) in kind::parts(&range, maps) {
                *kinds.entry(kind::now(region.kind, entry)).or_default() += bytes;
                rest = rest.saturating_sub(bytes);
            }
            if rest > 0 {
                *kinds.entry(region.kind).or_default() += rest;
            }
        }
        for (id, kinds) in kinds {
            let Some(region) = self.regions.get(&id) else {
                continue;
            };
            let max = kinds
                .iter()
                .max_by_key(|&(_, &bytes)| bytes)
                .map(|(&kind, _)| kind);
            for (kind, bytes) in kinds {
                let blocks = u64::from(Some(kind) == max);
                let entry = totals
                    .entry((region.stack, kind_of(region.stack, kind)))
                    .or_default();
                add(&mut entry.mapped, Amount { bytes, blocks });
            }
        }
        totals
    }
}

fn add(sum: &mut Amount, more: Amount) {
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.blocks = sum.blocks.saturating_add(more.blocks);
}
