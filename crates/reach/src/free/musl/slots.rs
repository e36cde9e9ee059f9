//! Contents of the slots of groups, by the headers before blocks.
//!
//! The last four bytes before a block are: a mark, which is 0, or else says that the four bytes before it
//! have the distance; the slot's index with, in the upper three bits, the number of bytes at the slot's end
//! that are not the block's; and the distance to the first slot in units, as 16 bits. A block can begin
//! behind the start of its slot: then the header there says so, and how far.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::groups::{Group, UNIT};
use crate::Memory;

/// Groups that are read together.
const TOGETHER: usize = 512;
/// Bytes at the end of a slot that are the header of what follows.
const HEADER: u64 = 4;
/// Index and rest in the header of a slot whose block begins behind the slot's start.
const MOVED: u64 = 7 << 5;
/// Modulus in bytes of the distance of a moved block, of which the header has only the low 16 bits, in units.
const WRAP: usize = (1 << 16) * 16;
/// Maximum number of places that are tried for one moved block: up to 4 GiB.
const MAX_PLACES: usize = 1 << 12;

/// Content of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Free,
    /// Requested memory of a block.
    Used(Range<u64>),
    /// Group of smaller slots, by its address.
    Group(u64),
    /// Slot that is in use by its group's record, but not by a header: a call is about to take or to free it.
    Unclear,
}

/// Reads all slots of `groups`, which ascend, and calls `see` with each group and its slots, or `None` if the
/// group's head does not lead back to its record.
pub(super) fn visit(memory: &dyn Memory, groups: &[Group], see: &mut dyn FnMut(&Group, Option<&[Slot]>)) {
    let mut slots = Vec::new();
    for groups in groups.chunks(TOGETHER) {
        let heads = groups.iter().map(|group| group.at);
        // The word before each slot, and the last word of the last slot.
        let borders = groups.iter().flat_map(|group| {
            let ends = group.slots().map(|slot| slot.end - 8);
            ends.chain([group.at + UNIT - 8])
        });
        let words = Words::read(memory, heads.chain(borders).collect());
        let places = groups.iter().flat_map(|group| group.moved(&words));
        let headers = Words::read(memory, places.map(|at| at - 8).collect());
        for group in groups {
            if words.at(group.at) != Some(group.record) {
                see(group, None);
                continue;
            }
            slots.clear();
            slots.extend((0..).zip(group.slots()).map(|(index, slot)| {
                let read = || group.used(index, &slot, &words, &headers);
                match group.is_free(index) {
                    true => Slot::Free,
                    false => read().unwrap_or(Slot::Unclear),
                }
            }));
            see(group, Some(&slots));
        }
    }
}

impl Group {
    fn is_free(&self, index: u64) -> bool {
        self.free >> index & 1 != 0
    }

    /// Places of blocks that may begin behind the start of their slots.
    fn moved<'a>(&'a self, words: &'a Words) -> impl Iterator<Item = u64> + 'a {
        let used = (0..).zip(self.slots()).filter(|(index, _)| !self.is_free(*index));
        used.flat_map(|(_, slot)| {
            let header = words.at(slot.start - 8).unwrap_or_default();
            places(&slot, header)
        })
    }

    /// Content of a slot that is in use; `None` if its headers do not say what it is.
    fn used(&self, index: u64, slot: &Range<u64>, words: &Words, headers: &Words) -> Option<Slot> {
        let last = words.at(slot.end - 8);
        let header = words.at(slot.start - 8)?;
        if tag(header) != MOVED {
            return self.content(index, slot, (slot.start, header), last);
        }
        let found = places(slot, header);
        let mut found = found.filter_map(|at| self.content(index, slot, (at, headers.at(at - 8)?), last));
        let only = found.next();
        only.filter(|_| found.next().is_none())
    }

    /// Reads the header of a block that begins at `at`. `last` is the word at the slot's end.
    fn content(
        &self,
        index: u64,
        slot: &Range<u64>,
        (at, header): (u64, u64),
        last: Option<u64>,
    ) -> Option<Slot> {
        let (long, mark, short) = (header & 0xffff_ffff, header >> 32 & 0xff, header >> 48);
        let distance = match (mark, short) {
            (0, short) => short,
            (_, 0) if long > 0xffff => long,
            (_, _) => return None,
        };
        let first = self.at + UNIT;
        if tag(header) & 31 != index || at.checked_sub(first)? != distance * UNIT {
            return None;
        }
        let rest = match tag(header) >> 5 {
            6 => return Some(Slot::Group(at)),
            7 => return None,
            5 => Some(last? & 0xffff_ffff).filter(|rest| *rest >= 5)?,
            rest => rest,
        };
        let end = (slot.end - HEADER).checked_sub(rest)?;
        (at <= end).then_some(Slot::Used(at..end))
    }
}

/// Index and rest in a header.
fn tag(header: u64) -> u64 {
    header >> 40 & 0xff
}

type Places = std::iter::Take<std::iter::StepBy<Range<u64>>>;

/// Places at which the block of a slot can begin, if it is moved.
fn places(slot: &Range<u64>, header: u64) -> Places {
    let first = slot.start.saturating_add((header >> 48) * UNIT);
    let end = match tag(header) {
        MOVED => slot.end,
        _ => first,
    };
    (first.min(end)..end).step_by(WRAP).take(MAX_PLACES)
}

/// Some words of memory, by address.
struct Words(Vec<(u64, u64)>);

impl Words {
    fn read(memory: &dyn Memory, mut addresses: Vec<u64>) -> Self {
        addresses.sort_unstable();
        addresses.dedup();
        let ranges: Vec<_> = addresses
            .iter()
            .map(|&at| Avma::new(at)..Avma::new(at.saturating_add(8)))
            .collect();
        let mut found = Vec::with_capacity(ranges.len());
        memory.visit(&ranges, &mut |first, words| {
            let at = (first.get()..).step_by(8);
            found.extend(at.zip(words.iter().copied()));
        });
        Self(found)
    }

    fn at(&self, address: u64) -> Option<u64> {
        let place = self.0.binary_search_by_key(&address, |(at, _)| *at).ok()?;
        self.0.get(place).map(|(_, word)| *word)
    }
}
