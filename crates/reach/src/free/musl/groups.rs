//! Groups of slots, by their records (`struct meta`), which are in their own areas (`struct meta_area`).
//!
//! A group's memory (`struct group`) is two words, the address of its record and a count, and slots of one
//! size behind it. It is its own mapping, or a slot of another group, or the rest of a page of an object's
//! data, which the loader has given to the allocator.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::End;
use super::contexts::Context;
use crate::Memory;
use crate::ranges::joined;
use memleak_process::maps::MapsEntry;

/// Bytes of an area, to which it is aligned, and words at its start: the secret, the address of the next, and
/// the number of records.
pub(super) const AREA: u64 = 4096;
const AREA_WORDS: usize = 512;
pub(super) const AREA_HEAD: usize = 3;
/// Words of a record: links to two others, address of the group, masks of free slots, sizes.
const RECORD: usize = 5;

/// Alignment of blocks, and size of the head of a group, in bytes.
pub(super) const UNIT: u64 = 16;
/// Bytes of a page, as records count them.
const PAGE: u64 = 4096;
/// Size of slots in units, by class.
const CLASSES: [u16; 48] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146, 170, 204,
    255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730, 3276, 4095, 4680, 5460,
    6552, 8191,
];
/// Class of blocks that have their own mapping.
const MAPPED: u64 = 63;

/// A group as its record describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Address of its record.
    pub record: u64,
    pub at: u64,
    pub end: u64,
    /// Slots that are free, or were never given out, by bits.
    pub free: u32,
    count: u64,
    /// Bytes from slot to slot.
    stride: u64,
}

impl Group {
    /// Slots, ascending. Memory behind the last is in none.
    pub(super) fn slots(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let Self {
            at, count, stride, ..
        } = *self;
        (0..count).map(move |index| {
            let start = at + UNIT + index * stride;
            start..start + stride
        })
    }

    /// Bytes from slot to slot.
    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    /// Index of the slot that contains an address, and the slot.
    pub(super) fn slot_at(&self, address: u64) -> Option<(usize, Range<u64>)> {
        let index = address.checked_sub(self.at + UNIT)? / self.stride;
        let index = usize::try_from(index).ok()?;
        self.slots().nth(index).map(|slot| (index, slot))
    }

    /// Reads a record; `None` if it describes no group now. `mapped` is memory where a group can be.
    fn parse(record: u64, words: &[u64], mapped: &[Range<Avma>]) -> Result<Option<Self>, End> {
        let &[_, _, at, masks, sizes] = words else {
            return Err(End::Malformed);
        };
        if at == 0 {
            return Ok(None);
        }
        let (last, class, pages) = (sizes & 31, sizes >> 6 & 63, sizes >> 12);
        let count = last + 1;
        let (available, freed) = (masks & 0xffff_ffff, masks >> 32);
        let free = available | freed;
        let units = usize::try_from(class).ok().and_then(|class| CLASSES.get(class));
        let bytes = pages.checked_mul(PAGE).filter(|bytes| *bytes < 1 << 56);
        let stride = match (units, bytes.ok_or(End::Malformed)?) {
            (_, bytes) if last == 0 && bytes > 0 && (units.is_some() || class == MAPPED) => bytes - UNIT,
            (Some(&units), _) => u64::from(units) * UNIT,
            (None, _) => return Err(End::Malformed),
        };
        let slots_end = at.checked_add(UNIT + count * stride);
        let end = match pages {
            0 => slots_end,
            pages => at.checked_add(pages * PAGE),
        };
        let is_right =
            at.is_multiple_of(if pages == 0 { UNIT } else { PAGE }) && slots_end <= end && free >> count == 0;
        let (true, Some(end)) = (is_right, end) else {
            return Err(End::Malformed);
        };
        let before = mapped.partition_point(|range| range.end.get() < end);
        let is_mapped = mapped
            .get(before)
            .is_some_and(|range| range.start.get() <= at && end <= range.end.get());
        let free = u32::try_from(free).map_err(|_| End::Malformed)?;
        is_mapped
            .then_some(Some(Self {
                record,
                at,
                end,
                free,
                count,
                stride,
            }))
            .ok_or(End::Border)
    }
}

/// Groups, ascending by address.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub found: Vec<Group>,
    /// Records that make no sense, and areas that could not be read: their groups stay roots.
    pub refused: BTreeMap<End, u64>,
}

/// Finds all groups by their records. Their heads have not been read.
pub(super) fn find(memory: &dyn Memory, contexts: &[Context], maps: &[MapsEntry]) -> Groups {
    let own = maps
        .iter()
        .filter(|entry| entry.readable && entry.writable && !entry.shared);
    let mapped = joined(own.map(|entry| entry.range.clone()).collect());
    let mut groups = Groups::default();
    for context in contexts {
        for &area in &context.areas {
            groups.add_area(memory, context.secret, area, &mapped);
        }
    }
    groups.found.sort_unstable_by_key(|group| group.at);
    // If two records describe the same memory, the group's head tells which one is right.
    groups
}

impl Groups {
    fn add_area(&mut self, memory: &dyn Memory, secret: u64, area: u64, mapped: &[Range<Avma>]) {
        let mut words = [0; AREA_WORDS];
        if !memory.read(Avma::new(area), &mut words) || words[0] != secret {
            *self.refused.entry(End::Unreadable).or_default() += 1;
            return;
        }
        let (head, records) = words.split_at(AREA_HEAD);
        let count = usize::try_from(head[2] & 0xffff_ffff).unwrap_or(usize::MAX);
        let first = area + 8 * AREA_HEAD as u64;
        let at = (first..).step_by(8 * RECORD);
        for (words, at) in records.chunks_exact(RECORD).zip(at).take(count) {
            match Group::parse(at, words, mapped) {
                Ok(group) => self.found.extend(group),
                Err(end) => *self.refused.entry(end).or_default() += 1,
            }
        }
    }
}
