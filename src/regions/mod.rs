//! Mappings of a process, made and taken away by its calls since tracing began.
//!
//! Pure: [`RegionEvent`]s in, totals per stack out. An address belongs to the call that mapped it last, however it was
//! cut since: a mapping ends when its last page is unmapped. What was mapped before tracing began is not known; calls
//! that unmap it are counted.
//!
//! What a call takes away leaves when the call begins, since another thread can map there before it has ended; it
//! comes back if the call fails. What a call gives enters when it has ended. As `realloc` does, `mremap` makes a
//! mapping of its own, all of which is its caller's.

pub mod intervals;
mod kind;
mod meaning;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use unwind_tables::addr::Avma;

use crate::collect::{Amount, CallMoment, RegionCall, RegionEvent, RegionKind};
use crate::pages;
use crate::target::maps::MapsEntry;
use intervals::Intervals;

/// What a call mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The index of its stack's record.
    pub stack: u32,
    /// What it was asked for as.
    pub kind: RegionKind,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub since: u64,
    /// Size of its pages.
    page: u64,
    /// Bytes of it that are still mapped.
    left: u64,
}

/// Names a mapping; never used again.
type RegionId = u64;

/// What a call in progress has taken away, to come back if it fails.
#[derive(Clone, Debug)]
struct InProgress {
    call: RegionCall,
    arguments: [u64; 5],
    /// Whether there is anything that it unmaps.
    unmaps: bool,
    /// It moves addresses that are not all known to be mapped: what is not is not mapped after the move either.
    moves_gaps: bool,
    taken: Vec<(Range<Avma>, RegionId, Region)>,
    program_break: Option<u64>,
}

/// What became of all mappings of a stack that are of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionTotals {
    /// Still mapped.
    pub mapped: Amount,
    /// Unmapped again. A mapping that is cut counts as a block until the last of it is gone.
    pub unmapped: Amount,
    /// Not recorded, for want of room.
    pub lost: Amount,
}

/// Counts of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionEvents {
    /// Calls seen.
    pub calls: u64,
    /// Calls that the kernel refused.
    pub failed: u64,
    /// Calls that unmapped nothing that was known.
    pub unknown: u64,
}

/// The mappings of one process.
#[derive(Debug)]
pub struct Regions {
    live: Intervals<RegionId>,
    regions: HashMap<RegionId, Region>,
    next: RegionId,
    /// By thread.
    in_progress: HashMap<u32, InProgress>,
    unmapped: BTreeMap<(u32, RegionKind), Amount>,
    lost: BTreeMap<(u32, RegionKind), Amount>,
    events: RegionEvents,
    /// Pieces that there can be.
    capacity: usize,
}

impl Regions {
    /// None yet; at most `capacity` pieces.
    pub fn new(capacity: usize) -> Self {
        Self {
            live: Intervals::default(),
            regions: HashMap::new(),
            next: 0,
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

    /// What is mapped, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Range<Avma>, &Region)> {
        let pieces = self.live.iter();
        pieces.filter_map(|(range, id)| Some((range, self.regions.get(&id)?)))
    }

    /// Follows a call. Returns addresses of which some may not be mapped all the same: a failed call may have unmapped
    /// them, or a move had gaps. What is said of them must be compared with the process's maps.
    pub fn apply(&mut self, event: &RegionEvent) -> Vec<Range<Avma>> {
        match event.moment {
            CallMoment::Begins { program_break } => {
                let program_break = (event.call == RegionCall::Brk).then_some(program_break);
                let progress = self.begin(event, program_break);
                self.in_progress.insert(event.thread, progress);
                Vec::new()
            }
            CallMoment::Ended { stack, .. } => self.end(event, stack),
        }
    }

    fn begin(&mut self, event: &RegionEvent, program_break: Option<u64>) -> InProgress {
        let ranges = meaning::taken(event, |address| self.page_at(address));
        let moved = meaning::moved_as_is(event);
        let moves_gaps = moved.is_some_and(|range| !self.live.covers(&range));
        let taken = ranges.iter().flat_map(|range| self.unmap(range)).collect();
        InProgress {
            call: event.call,
            arguments: event.arguments,
            unmaps: !ranges.is_empty(),
            moves_gaps,
            taken,
            program_break,
        }
    }

    fn end(&mut self, event: &RegionEvent, stack: u32) -> Vec<Range<Avma>> {
        self.events.calls += 1;
        let begun = self.in_progress.remove(&event.thread);
        let begun = begun.filter(|begun| begun.call == event.call && begun.arguments == event.arguments);
        if meaning::has_failed(event) {
            self.events.failed += 1;
            let taken = begun.map(|begun| begun.taken).unwrap_or_default();
            for (range, id, region) in &taken {
                self.put_back(range, *id, region);
            }
            let doubtful = matches!(event.call, RegionCall::Mmap | RegionCall::Mremap);
            let taken = taken.into_iter().filter(|_| doubtful);
            return taken.map(|(range, ..)| range).collect();
        }
        // The pages of what is moved, which is not there any more.
        let moved = meaning::moves(event);
        let old = moved.and_then(|old| match &begun {
            Some(begun) => begun
                .taken
                .iter()
                .find(|(range, ..)| range.contains(&old))
                .map(|taken| taken.2),
            None => None,
        });
        let old = old.or_else(|| self.at(moved?));
        let page_at = |_| old.map_or(pages::bytes(), |old| old.page);
        let begun = match begun {
            Some(begun) => begun,
            None => self.begin(event, None),
        };
        let counts = matches!(event.call, RegionCall::Munmap | RegionCall::Mremap);
        if counts && begun.unmaps && begun.taken.is_empty() {
            self.events.unknown += 1;
        }
        let Some(range) = meaning::given(event, begun.program_break, page_at) else {
            return Vec::new();
        };
        self.map(&range, Self::asked_for(event, old, stack));
        Some(range).filter(|_| begun.moves_gaps).into_iter().collect()
    }

    fn asked_for(event: &RegionEvent, old: Option<Region>, stack: u32) -> Region {
        let [_, _, protection, flags, _] = event.arguments;
        let (kind, page) = match (event.call, old) {
            (RegionCall::Mmap, _) => (kind::asked_for(protection, flags), meaning::page_of(flags)),
            (RegionCall::Mremap, Some(old)) => (old.kind, old.page),
            (RegionCall::Mremap | RegionCall::Brk | RegionCall::Munmap, _) => {
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

    /// Enters a new mapping. What is known to be there was unmapped by a call that was not seen.
    fn map(&mut self, range: &Range<Avma>, region: Region) {
        self.unmap(range);
        let bytes = range.end.offset_from(range.start);
        if self.live.len() >= self.capacity {
            add(
                self.lost.entry((region.stack, region.kind)).or_default(),
                Amount { bytes, blocks: 1 },
            );
            return;
        }
        let id = self.next;
        self.next += 1;
        self.live.fill(range, id);
        self.regions.insert(
            id,
            Region {
                left: bytes,
                ..region
            },
        );
    }

    fn unmap(&mut self, range: &Range<Avma>) -> Vec<(Range<Avma>, RegionId, Region)> {
        let taken = self.live.take(range);
        let mut known = Vec::with_capacity(taken.len());
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
            known.push((range, id, region));
        }
        known
    }

    /// Undoes an [`Regions::unmap`], as far as nothing is there by now.
    fn put_back(&mut self, range: &Range<Avma>, id: RegionId, region: &Region) {
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

    /// Lets go of what `maps`, the process's own (ascending), do not have: it was unmapped by calls that were not
    /// seen. Only inside `doubtful`. Returns how many bytes that was.
    pub fn retain_mapped(&mut self, doubtful: &[Range<Avma>], maps: &[MapsEntry]) -> u64 {
        let mut gone = 0;
        for range in doubtful {
            let mut from = range.start;
            let first = maps.partition_point(|entry| entry.range.end <= range.start);
            let inside = maps.get(first..).unwrap_or_default().iter();
            for entry in inside.take_while(|entry| entry.range.start < range.end) {
                gone += self.forget(&(from..entry.range.start));
                from = entry.range.end;
            }
            gone += self.forget(&(from..range.end));
        }
        gone
    }

    fn forget(&mut self, range: &Range<Avma>) -> u64 {
        let gone = self.unmap(range);
        gone.iter()
            .map(|(range, ..)| range.end.offset_from(range.start))
            .sum()
    }

    /// Totals by stack and kind. `maps` are the process's own now, ascending; without them, mappings are what they
    /// were asked for as. `is_allocators` says whether a stack is an allocator's.
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
        // A mapping that is of several kinds by now is a block of the one that it has the most of.
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
            let most = kinds
                .iter()
                .max_by_key(|&(_, &bytes)| bytes)
                .map(|(&kind, _)| kind);
            for (kind, bytes) in kinds {
                let blocks = u64::from(Some(kind) == most);
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
