//! The effect of a mapping call on addresses, from its arguments, its result, and the size of pages. Pure
//! otherwise; the rules are those of mmap(2), munmap(2), mremap(2) and brk(2), and where these are silent, of
//! the kernel's mm/mmap.c and mm/mremap.c.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::event::{CallMoment, RegionEvent};
use leak_report::model::RegionCall;
use memleak_base::pages;

// From the kernel's include/uapi/asm-generic/mman-common.h and linux/mman.h.
const MAP_FIXED: u64 = 0x10;
const MAP_HUGETLB: u64 = 0x4_0000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MAP_HUGE_SHIFT: u32 = 26;
const MAP_HUGE_MASK: u64 = 0x3f;
const MREMAP_FIXED: u64 = 2;
const MREMAP_DONTUNMAP: u64 = 4;

/// Ranges that a call unmaps, in its order.
pub(super) fn taken(event: &RegionEvent, page_at: impl Fn(Avma) -> u64) -> Vec<Range<Avma>> {
    let [first, second, third, fourth, fifth] = event.arguments;
    let ranges = match (event.call, event.moment) {
        (RegionCall::Munmap, _) => vec![whole_pages(first, second, pages::bytes())],
        (RegionCall::Mmap, _) if replaces(fourth) => vec![whole_pages(first, second, page_of(fourth))],
        (RegionCall::Mremap, _) => {
            let page = page_at(Avma::new(first));
            let old =
                (second != 0 && fourth & MREMAP_DONTUNMAP == 0).then(|| whole_pages(first, second, page));
            let new = (fourth & MREMAP_FIXED != 0).then(|| whole_pages(fifth, third, page));
            return [new, old].into_iter().flatten().flatten().collect();
        }
        (RegionCall::Brk, CallMoment::Begins { program_break }) if (1..program_break).contains(&first) => {
            vec![between(first, program_break)]
        }
        (RegionCall::Mmap | RegionCall::Brk | RegionCall::Madvise, _) => Vec::new(),
    };
    ranges.into_iter().flatten().collect()
}

/// Range that a call maps unless some of it is mapped.
pub(super) fn asked_for_free(event: &RegionEvent) -> Option<Range<Avma>> {
    let [first, second, _, flags, _] = event.arguments;
    let is_it = event.call == RegionCall::Mmap && flags & MAP_FIXED_NOREPLACE != 0;
    is_it
        .then(|| whole_pages(first, second, page_of(flags)))
        .flatten()
}

/// Range that a call has mapped; `program_break` is the break before it. `None` if it failed or mapped
/// nothing.
pub(super) fn given(
    event: &RegionEvent,
    program_break: Option<u64>,
    page_at: impl Fn(Avma) -> u64,
) -> Option<Range<Avma>> {
    let [first, second, third, fourth, _] = event.arguments;
    let CallMoment::Ended { result, .. } = event.moment else {
        return None;
    };
    if has_failed(event) {
        return None;
    }
    match event.call {
        RegionCall::Mmap => whole_pages(result, second, page_of(fourth)),
        RegionCall::Mremap => whole_pages(result, third, page_at(Avma::new(first))),
        RegionCall::Brk => between(program_break?, result),
        RegionCall::Munmap | RegionCall::Madvise => None,
    }
}

/// True if an ended call failed. `brk` returns the current break whether or not it was changed.
pub(crate) fn has_failed(event: &RegionEvent) -> bool {
    let CallMoment::Ended { result, .. } = event.moment else {
        return false;
    };
    match event.call {
        RegionCall::Brk => event.arguments[0] != 0 && event.arguments[0] != result,
        RegionCall::Mmap | RegionCall::Mremap | RegionCall::Munmap | RegionCall::Madvise => {
            result > 4096_u64.wrapping_neg()
        }
    }
}

/// Start of the mapping that a call moves: the new mapping is of the same kind.
pub(super) fn moves(event: &RegionEvent) -> Option<Avma> {
    (event.call == RegionCall::Mremap).then(|| Avma::new(event.arguments[0]))
}

/// The effect of `mremap` on addresses that need not all be mapped, in two cases.
///
/// First, a move to a given address that keeps the length. Its source may contain several mappings (Linux
/// 6.17): the gaps between them are not moved, and mappings at the gaps' places in the destination stay
/// (mm/mremap.c, `remap_move`).
///
/// Second, a call that neither grows nor moves a mapping: the kernel checks the first address only, and
/// unmaps all beyond the new length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) source: Range<Avma>,
    destination: Avma,
    /// Range that it unmaps, except for the destination of moved parts.
    pub(super) takes: Option<Range<Avma>>,
}

impl Move {
    /// True if the addresses do not change.
    pub(super) fn is_in_place(&self) -> bool {
        self.destination == self.source.start
    }

    /// Destination of a part of the source.
    pub(super) fn moved(&self, part: &Range<Avma>) -> Range<Avma> {
        let to = |address: Avma| {
            self.destination
                .wrapping_add(address.offset_from(self.source.start))
        };
        to(part.start)..to(part.end)
    }
}

/// The move that a call makes, if it is one of these cases. `page` is the size of the pages that it moves.
pub(super) fn moved_as_is(event: &RegionEvent, page: u64) -> Option<Move> {
    let [old, old_length, new_length, flags, new] = event.arguments;
    if event.call != RegionCall::Mremap {
        return None;
    }
    let leaves = flags & MREMAP_DONTUNMAP != 0;
    let pages = |start, length| whole_pages(start, length, page);
    match flags & MREMAP_FIXED != 0 {
        true if old_length == new_length => Some(Move {
            source: pages(old, old_length)?,
            destination: pages(new, new_length)?.start,
            takes: pages(old, old_length).filter(|_| !leaves),
        }),
        false if old_length >= new_length && !leaves => Some(Move {
            source: pages(old, new_length)?,
            destination: Avma::new(old),
            takes: pages(old, old_length),
        }),
        _ => None,
    }
}

/// True if an ended call returned addresses that the kernel chose, which were free.
pub(super) fn is_placed(event: &RegionEvent) -> bool {
    let [old, _, _, flags, _] = event.arguments;
    match (event.call, event.moment) {
        (RegionCall::Mmap, _) => !replaces(flags),
        (RegionCall::Mremap, CallMoment::Ended { result, .. }) => flags & MREMAP_FIXED == 0 && result != old,
        _ => false,
    }
}

/// Size of the pages that `mmap` with these flags maps, to which lengths are rounded up. `MAP_HUGETLB`
/// without a size means the machine's default size, unless the kernel was started with another.
pub(super) fn page_of(flags: u64) -> u64 {
    if flags & MAP_HUGETLB == 0 {
        return pages::bytes();
    }
    let log = flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK;
    match u32::try_from(log) {
        Ok(0) | Err(_) => pages::huge_bytes(),
        Ok(log) => 1 << log,
    }
}

fn replaces(flags: u64) -> bool {
    flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED
}

/// Rounds a length up to pages; `None` if the kernel would refuse: an unaligned start, no length, an
/// overflow.
fn whole_pages(start: u64, length: u64, page: u64) -> Option<Range<Avma>> {
    let length = length.checked_next_multiple_of(page)?;
    let end = start.checked_add(length)?;
    (start.is_multiple_of(pages::bytes()) && length > 0).then(|| Avma::new(start)..Avma::new(end))
}

/// The pages between two breaks.
fn between(low: u64, high: u64) -> Option<Range<Avma>> {
    let [low, high] = [low, high].map(|address| address.checked_next_multiple_of(pages::bytes()));
    let (low, high) = (low?, high?);
    (low < high).then(|| Avma::new(low)..Avma::new(high))
}
