//! Blocks in use, by glibc's own structures.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::unused::listed;
use super::lists::CACHE_SIZES;
use super::mapped::Mapped;
use super::walk::{HEADER, is_header, size};
use super::{Collector, areas, search};
use crate::Memory;
use crate::heap::{Block, Heap};
use crate::ranges::{joined, without};
use memleak_process::maps::MapsEntry;

/// Words of a chunk that are read, from its size on.
const HEAD: usize = 3;

/// Lists all blocks in use, and counts the bytes of arenas that no walk went through; `None` if there is no
/// arena.
pub(in super::super) fn in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<(Vec<Block>, u64)> {
    let nothing = Heap::default();
    let (arenas, finder) = search(memory, maps, Collector::new(&nothing, &CACHE_SIZES));
    if arenas.is_empty() {
        return None;
    }
    let mut heads = Vec::new();
    finder.collector.unlisted.runs(&mut |run| {
        let chunks = (run.start..run.end).step_by(16);
        heads.extend(chunks.map(|at| Avma::new(at + 8)..Avma::new(at + 8 + 8 * HEAD as u64)));
    });
    let keys = &finder.collector.keys;
    let mut blocks = Vec::with_capacity(heads.len());
    // The chunk's size, and two words of the block. A block in a cache that was not found has the same key as
    // those in known caches.
    let mut see = |at: Avma, &[word, _, key]: &[u64; HEAD]| {
        if is_header(word, false) && !keys.contains(&key) {
            // The first word of the next chunk's header belongs to this block.
            blocks.push(listed(at.get().wrapping_add(8), size(word).saturating_sub(8)));
        }
    };
    let mut divided = Vec::new();
    memory.visit(&heads, &mut |at, words| match words.try_into() {
        Ok(words) => see(at, words),
        Err(_) => divided.push(at),
    });
    // A head is shown in parts if a single read does not cover it.
    for at in divided {
        let mut words = [0; HEAD];
        let is_head = heads.binary_search_by_key(&at, |head| head.start).is_ok();
        if is_head && memory.read(at, &mut words) {
            see(at, &words);
        }
    }
    let areas = areas(maps);
    let others = areas.iter().filter(|area| !area.is_brk);
    let mapped = others.flat_map(|area| mapped(memory, &area.range));
    blocks.extend(mapped.map(|mapped| {
        let address = mapped.start + HEADER;
        listed(address, mapped.usable_end - address)
    }));
    blocks.sort_unstable_by_key(|block| block.address);
    let Collector { memories, walked, .. } = finder.collector;
    let memories = memories.into_iter().map(|of| range(&of.range)).collect();
    let left = without(joined(memories), joined(walked));
    let left = left.map(|range| range.end.offset_from(range.start)).sum();
    Some((blocks, left))
}

fn range(range: &Range<u64>) -> Range<Avma> {
    Avma::new(range.start)..Avma::new(range.end)
}

/// Lists the consecutive chunks with their own mappings at the start of an area.
pub(super) fn mapped<'a>(memory: &'a dyn Memory, area: &Range<u64>) -> impl Iterator<Item = Mapped> + 'a {
    let Range { start, end } = *area;
    let mut next = start;
    std::iter::from_fn(move || {
        let mut header = [0; 2];
        if !memory.read(Avma::new(next), &mut header) {
            return None;
        }
        let mapped = Mapped::read(next, header).filter(|mapped| mapped.start == next && mapped.end <= end)?;
        next = mapped.end;
        Some(mapped)
    })
}
