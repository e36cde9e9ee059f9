//! Uses of all memory of musl's malloc.
//!
//! Each group is a slab. A group within a slot of another one takes the slot's place.

use std::ops::Range;

use super::contexts;
use super::groups::{self, Group, UNIT};
use super::slots::{self, Slot};
use super::{Allocator, Memory};
use crate::layout::{Arena, Division, Layout, Piece, Pieces, Slab, Usage};
use crate::ranges::joined;
use memleak_process::maps::MapsEntry;
use unwind_tables::addr::Avma;

/// Maximum number of groups that are in slots of each other. A slot with a group is larger than all of it, so
/// the 48 classes of slots do not allow for many.
const MAX_DEPTH: usize = 48;
/// Offset of a slot whose content is not known.
const UNCLEAR: u32 = u32::MAX;

/// Reads the layout; `None` if the allocator's state is not found.
pub(in super::super) fn layout(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Layout> {
    let contexts = contexts::find(memory, maps);
    if contexts.is_empty() {
        return None;
    }
    let groups = groups::find(memory, &contexts, maps);
    let mut refused: u64 = groups.refused.values().sum();
    let mut described = Described::default();
    slots::visit(memory, &groups.found, &mut |group, slots| match slots {
        Some(slots) => described.add(group, slots),
        None => refused += 1,
    });
    let own = contexts.iter().flat_map(|context| context.areas.iter());
    let own = own.map(|area| avmas(&(*area..area.saturating_add(groups::AREA))));
    described.own = plain(joined(own.collect()));
    let groups = described
        .groups
        .iter()
        .map(|group| avmas(&(group.group.at..group.group.end)));
    Some(Layout {
        allocator: Allocator::Musl,
        division: Division::Slots,
        arenas: vec![Arena {
            name: "heap".to_owned(),
            ranges: plain(joined(groups.collect())),
            gives_top: None,
        }],
        unknown: 0,
        refused,
        pieces: Box::new(described),
    })
}

fn avmas(range: &Range<u64>) -> Range<Avma> {
    Avma::new(range.start)..Avma::new(range.end)
}

fn plain(ranges: Vec<Range<Avma>>) -> Vec<Range<u64>> {
    let ranges = ranges.iter().map(|range| range.start.get()..range.end.get());
    ranges.collect()
}

/// A group that its head confirms.
struct Confirmed {
    group: Group,
    /// Index of the first slot's offset.
    first: usize,
}

#[derive(Default)]
struct Described {
    /// By address.
    groups: Vec<Confirmed>,
    /// For each slot, units from its start to the block or group in it. Of a free slot, it means nothing.
    offsets: Vec<u32>,
    /// Bits of the slots of each group that have groups in them.
    nested: Vec<u32>,
    own: Vec<Range<u64>>,
}

impl Described {
    fn add(&mut self, group: &Group, slots: &[Slot]) {
        // Of two groups in the same memory, one was made while the records were read.
        if self.groups.last().is_some_and(|last| last.group.at >= group.at) {
            return;
        }
        self.groups.push(Confirmed {
            group: *group,
            first: self.offsets.len(),
        });
        let mut nested = 0;
        for (index, (slot, whole)) in slots.iter().zip(group.slots()).enumerate() {
            let at = match slot {
                Slot::Free | Slot::Unclear => None,
                Slot::Used(range) => Some(range.start),
                Slot::Group(at) => {
                    nested |= 1 << index;
                    Some(*at)
                }
            };
            let offset = at.and_then(|at| u32::try_from(at.checked_sub(whole.start)? / UNIT).ok());
            self.offsets.push(offset.unwrap_or(UNCLEAR));
        }
        self.nested.push(nested);
    }

    /// Shows a group, by its number, and the groups in it. Returns the number of the first group behind it.
    fn visit_group(&self, number: usize, depth: usize, see: &mut dyn FnMut(&Piece)) -> usize {
        let mut next = number + 1;
        let Some(Confirmed { group, first }) = self.groups.get(number) else {
            return next;
        };
        let nested = self.nested.get(number).copied().unwrap_or(0);
        let slab = Slab {
            start: group.at,
            bytes: group.end - group.at,
            block: group.stride(),
        };
        let show = |range: Range<u64>, usage, see: &mut dyn FnMut(&Piece)| {
            if !range.is_empty() {
                see(&Piece {
                    range,
                    usage,
                    arena: Some(0),
                    slab: Some(slab),
                });
            }
        };
        show(group.at..group.at + UNIT, Usage::Own, see);
        let mut behind = group.at + UNIT;
        for (index, slot) in group.slots().enumerate() {
            behind = slot.end;
            let offset = self.offsets.get(first + index).copied().unwrap_or(UNCLEAR);
            let address = slot.start + u64::from(offset) * UNIT;
            let usage = match offset {
                _ if group.free >> index & 1 != 0 => Usage::Free,
                UNCLEAR => Usage::Unknown,
                _ => Usage::Block { address },
            };
            if nested >> index & 1 == 0 {
                show(slot, usage, see);
                continue;
            }
            let rest = self.groups.get(next..).unwrap_or_default();
            next += rest.partition_point(|other| other.group.at < slot.start);
            let inner = self.groups.get(next).map(|inner| inner.group.at..inner.group.end);
            let inner = inner.filter(|_| depth < MAX_DEPTH);
            match inner.filter(|inner| inner.start == address && inner.end <= slot.end) {
                Some(inner) => {
                    show(slot.start..inner.start, Usage::Own, see);
                    next = self.visit_group(next, depth + 1, see);
                    show(inner.end..slot.end, Usage::Own, see);
                }
                None => show(slot, Usage::Unknown, see),
            }
        }
        show(behind..group.end, Usage::Own, see);
        // Groups that overlap with this one, and that no slot leads to.
        let rest = self.groups.get(next..).unwrap_or_default();
        next + rest.iter().take_while(|other| other.group.at < group.end).count()
    }
}

impl Pieces for Described {
    fn visit(&self, see: &mut dyn FnMut(&Piece)) {
        let mut next = 0;
        while next < self.groups.len() {
            next = self.visit_group(next, 0, see);
        }
        for range in &self.own {
            see(&Piece {
                range: range.clone(),
                usage: Usage::Own,
                arena: None,
                slab: None,
            });
        }
    }
}
