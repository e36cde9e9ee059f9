//! Unused memory of musl's malloc since 1.2.1 (mallocng), in 64-bit programs.
//!
//! [`contexts`] finds the allocator's state and the areas of its records, [`groups`] the groups of slots that
//! these describe, [`slots`] the contents of the slots. Each group is described twice, by its record and by
//! its own head, and each area of records begins with the process's secret, so that nothing else is taken for
//! one. A slot in use is described once more, by a header before the block, which has the requested size: if
//! that does not agree, the whole slot stays a root.
//!
//! Older versions, and static programs that never free, have another allocator: their memory stays roots.

mod contexts;
mod groups;
mod layout;
mod slots;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::contexts::Context;
use self::groups::Group;
pub(super) use self::layout::layout;
use self::slots::Slot;
use super::unused::{Allocator, End, Facts, Unused, listed};
use crate::Memory;
use crate::heap::{Block, Heap};
use memleak_process::maps::MapsEntry;

/// Finds the unused memory.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let contexts = contexts::find(memory, maps);
    let groups = groups::find(memory, &contexts, maps);
    let mut finder = Finder {
        heap,
        groups: &groups.found,
        ranges: contexts.iter().flat_map(Context::own).collect(),
        facts: Facts {
            allocator: (!contexts.is_empty()).then_some(Allocator::Musl),
            arenas: contexts.len(),
            ends: groups.refused.clone(),
            ..Facts::default()
        },
    };
    slots::visit(memory, &groups.found, &mut |group, slots| match slots {
        Some(slots) => finder.see(group, slots),
        None => finder.refuse(),
    });
    let mut unused = Unused::new(finder.ranges, Vec::new(), finder.facts);
    unused.cut_out(heap);
    unused
}

/// Lists all blocks in use; `None` if the allocator's state is not found.
pub(super) fn in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Vec<Block>> {
    let contexts = contexts::find(memory, maps);
    if contexts.is_empty() {
        return None;
    }
    let groups = groups::find(memory, &contexts, maps);
    let mut blocks = Vec::new();
    slots::visit(memory, &groups.found, &mut |_, slots| {
        for slot in slots.unwrap_or_default() {
            if let Slot::Used(range) = slot {
                blocks.push(listed(range.start, range.end - range.start));
            }
        }
    });
    blocks.sort_unstable_by_key(|block| block.address);
    Some(blocks)
}

struct Finder<'a> {
    heap: &'a Heap,
    /// By address.
    groups: &'a [Group],
    ranges: Vec<Range<u64>>,
    facts: Facts,
}

impl Finder<'_> {
    /// Counts a group whose head does not lead back to its record.
    fn refuse(&mut self) {
        *self.facts.ends.entry(End::Malformed).or_default() += 1;
    }

    /// Adds the unused memory of a group, unless listed blocks contradict the group.
    fn see(&mut self, group: &Group, slots: &[Slot]) {
        self.facts.chunks += slots.len() as u64;
        let Some(agreeing) = self.agreeing(group, slots) else {
            *self.facts.ends.entry(End::Distrusted).or_default() += 1;
            return;
        };
        self.facts.agreeing += agreeing;
        let mut unused_from = group.at;
        for (slot, whole) in slots.iter().zip(group.slots()) {
            let used = match slot {
                Slot::Free => continue,
                Slot::Used(range) => range.clone(),
                Slot::Group(at) => {
                    self.ranges.push(unused_from..*at);
                    unused_from = self.end_of_group(*at).unwrap_or(whole.end).min(whole.end);
                    continue;
                }
                Slot::Unclear => whole,
            };
            self.add(unused_from..used.start);
            unused_from = used.end;
        }
        self.ranges.push(unused_from..group.end);
    }

    /// Adds a range that ends where a block begins, unless it has room only for the word with the block's
    /// header.
    fn add(&mut self, range: Range<u64>) {
        const HEADER: u64 = 8;
        let first = range.start.next_multiple_of(8);
        if range.end.saturating_sub(first) > HEADER {
            self.ranges.push(range);
        }
    }

    /// Counts the listed blocks at which there is a block in use; `None` if a listed block crosses the border
    /// of a slot.
    fn agreeing(&mut self, group: &Group, slots: &[Slot]) -> Option<u64> {
        let blocks = self.heap.blocks();
        let first = blocks.partition_point(|block| block.address.get() < group.at);
        let blocks = blocks.get(first..).unwrap_or_default().iter().map(Block::range);
        let mut agreeing = 0;
        for block in blocks.take_while(|block| block.start.get() < group.end) {
            let (start, end) = (block.start.get(), block.end.get());
            let (index, slot) = group.slot_at(start).unzip();
            if slot.is_none_or(|slot| end > slot.end) {
                self.facts.disagreeing += 1;
                return None;
            }
            let found = index.and_then(|index| slots.get(index));
            agreeing += u64::from(matches!(found, Some(Slot::Used(used)) if used.start == start));
        }
        Some(agreeing)
    }

    fn end_of_group(&self, at: u64) -> Option<u64> {
        let place = self.groups.binary_search_by_key(&at, |group| group.at).ok()?;
        self.groups.get(place).map(|group| group.end)
    }
}
