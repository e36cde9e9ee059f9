//! Memory that jemalloc takes for its own records (`base_block_t`): mappings of multiples of 2 MiB, each with
//! a header that has its size and the part that is left.

use std::ops::Range;

use super::super::records;
use crate::Memory;
use memleak_process::maps::MapsEntry;

/// Alignment and granularity of sizes.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of the header, and bytes at the start of a block that stay a root: behind the header, an arena has a
/// pointer to the program's own functions by which it takes memory, possibly the only pointer to their table.
const HEADER: u64 = 144;
const KEPT: u64 = 256;
/// Maximum number of places that are checked: 2 TiB of memory.
const MAX_PLACES: usize = 1 << 20;

/// Low bits of the header's record of the rest: no arena and no slab; active; no size class.
const ARENA: u64 = 0xfff;
const SLAB_AND_STATE: u64 = 1 << 12 | 7 << 17;
const CLASS_SHIFT: u64 = 20;
const NO_CLASS: Range<u64> = 200..256;

/// Finds all such memory, ascending, apart from each other.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Range<u64>> {
    let mut places: Vec<u64> = Vec::new();
    for entry in maps.iter().filter(|entry| records::is_of_allocators(entry)) {
        let (start, end) = (entry.range.start.get(), entry.range.end.get());
        let first = start.checked_next_multiple_of(HUGE_PAGE).unwrap_or(end);
        let step = usize::try_from(HUGE_PAGE).unwrap_or(usize::MAX);
        places.extend((first..end).step_by(step).take(MAX_PLACES - places.len()));
    }
    let mut found: Vec<Range<u64>> = Vec::new();
    records::visit(memory, &places, &mut |at, words| found.extend(block(at, words)));
    found.sort_unstable_by_key(|block| block.start);
    // A block inside another one is only contents of that.
    found.dedup_by(|next, last| next.start < last.end);
    found
}

/// Returns the memory of a header, whose words are its size, the next one, and a record of the rest.
fn block(at: u64, words: &[u64; 5]) -> Option<Range<u64>> {
    let &[size, next, bits, rest, rest_size] = words;
    let end = at.checked_add(size)?;
    let is_right = size >= HUGE_PAGE
        && size.is_multiple_of(HUGE_PAGE)
        && next.is_multiple_of(HUGE_PAGE)
        && bits & ARENA == ARENA
        && bits & SLAB_AND_STATE == 0
        && NO_CLASS.contains(&(bits >> CLASS_SHIFT & 0xff))
        && rest >= at + HEADER
        && rest.checked_add(rest_size) == Some(end);
    is_right.then_some(at..end)
}

/// Part of a block that contains only records.
pub(super) fn records(block: &Range<u64>) -> Range<u64> {
    block.start + KEPT..block.end
}

/// Returns true if `bytes` bytes from `address` on are in one of `blocks`.
pub(super) fn has(blocks: &[Range<u64>], address: u64, bytes: u64) -> bool {
    let candidate = blocks.partition_point(|block| block.end <= address);
    let end = address.checked_add(bytes);
    let within = |block: &Range<u64>| block.start <= address && end.is_some_and(|end| end <= block.end);
    blocks.get(candidate).is_some_and(within)
}
