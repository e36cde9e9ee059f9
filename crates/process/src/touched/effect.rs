//! The effect of a call on pages: which it discards, which it moves. Pure; the rules are those of mmap(2),
//! munmap(2), mremap(2), brk(2) and madvise(2).

use std::ops::Range;

use crate::regions::{CallMoment, RegionEvent};
use leak_report::model::RegionCall;

// From the kernel's include/uapi/asm-generic/mman-common.h and linux/mman.h.
const MAP_SHARED: u64 = 0x01;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_LOCKED: u64 = 0x2000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_FIXED: u64 = 2;
const MADV_FREE: u64 = 8;

/// Size of pages, as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageShift(pub(super) u32);

impl PageShift {
    /// Pages that contain any of the `length` bytes from `start` on.
    pub(super) fn pages(self, start: u64, length: u64) -> Range<u64> {
        let end = start.saturating_add(length);
        let last = end.saturating_sub(1) >> self.0;
        let first = start >> self.0;
        first..if length == 0 { first } else { last + 1 }
    }
}

/// Memory that is not the process's own from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// A file's content, until it is written.
    PrivateFile,
    /// Memory or files that others can map too: never the process's own.
    Shared,
}

/// Effect of a call on pages, as known when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Ranges that are discarded.
    pub(super) discards: Vec<Range<u64>>,
    /// Range that keeps its content, possibly at other addresses.
    pub(super) moves: Option<Range<u64>>,
    /// Range that the kernel discards when it needs memory.
    pub(super) frees: Option<Range<u64>>,
}

impl Effect {
    /// Computes the effect of a call. `program_break` is the break before the call, if that is known.
    pub(super) fn of(event: &RegionEvent, program_break: Option<u64>, shift: PageShift) -> Self {
        let [first, second, third, fourth, fifth] = event.arguments;
        let discards = |start, length| Self {
            discards: vec![shift.pages(start, length)],
            ..Self::default()
        };
        match event.call {
            RegionCall::Munmap => discards(first, second),
            RegionCall::Mmap if is_placed(fourth) => discards(first, second),
            RegionCall::Mremap => {
                let replaced = (fourth & MREMAP_FIXED != 0).then(|| shift.pages(fifth, third));
                Self {
                    discards: replaced.into_iter().collect(),
                    moves: (second > 0).then(|| shift.pages(first, second)),
                    frees: None,
                }
            }
            RegionCall::Brk => match program_break {
                Some(old) if first > 0 && first < old => {
                    // The page that the new break is in stays.
                    let start = first.next_multiple_of(1 << shift.0);
                    discards(start, old.saturating_sub(start))
                }
                _ => Self::default(),
            },
            RegionCall::Madvise if third == MADV_FREE => Self {
                frees: Some(shift.pages(first, second)),
                ..Self::default()
            },
            // The kernel side sends only advice that discards.
            RegionCall::Madvise => discards(first, second),
            RegionCall::Mmap => Self::default(),
        }
    }
}

/// Returns whether `mmap` maps at given addresses, whatever is mapped there.
fn is_placed(flags: u64) -> bool {
    flags & (MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_FIXED
}

/// Result of a successful `mmap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) pages: Range<u64>,
    pub(super) backing: Option<Backing>,
    /// Set if nothing was mapped there before: the kernel chose the addresses.
    pub(super) is_new: bool,
    /// Set if all pages were made resident at once, without a fault.
    pub(super) is_populated: bool,
}

/// Result of an ended call that has succeeded, if it is `mmap`.
pub(super) fn mapped(event: &RegionEvent, shift: PageShift) -> Option<Mapped> {
    let CallMoment::Ended { result, .. } = event.moment else {
        return None;
    };
    let [_, length, protection, flags, _] = event.arguments;
    let backing = match (flags & MAP_SHARED != 0, flags & MAP_ANONYMOUS != 0) {
        (true, _) => Some(Backing::Shared),
        (false, false) => Some(Backing::PrivateFile),
        (false, true) => None,
    };
    (event.call == RegionCall::Mmap).then(|| Mapped {
        pages: shift.pages(result, length),
        backing,
        is_new: !is_placed(flags),
        is_populated: protection != 0 && flags & (MAP_POPULATE | MAP_LOCKED) != 0,
    })
}
