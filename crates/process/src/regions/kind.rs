//! The purpose of a mapping, from its call and `/proc/PID/maps`. Pure.

use std::ops::Range;

use unwind_tables::addr::Avma;

use crate::maps::{MapsEntry, MapsName};
use leak_report::model::RegionKind;

// From the kernel's include/uapi/asm-generic/mman-common.h and mman.h.
const PROT_NONE: u64 = 0;
const MAP_SHARED: u64 = 0x01;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_STACK: u64 = 0x2_0000;

/// The kind of mapping that `mmap` was called for.
pub(super) fn asked_for(protection: u64, flags: u64) -> RegionKind {
    match () {
        () if flags & MAP_ANONYMOUS == 0 => RegionKind::File,
        () if flags & (MAP_STACK | MAP_GROWSDOWN) != 0 => RegionKind::ThreadStack,
        () if flags & MAP_SHARED != 0 => RegionKind::Shared,
        () if protection == PROT_NONE => RegionKind::Reservation,
        () => RegionKind::Anonymous,
    }
}

/// The kind of a mapping now: its access rights in the process's maps may have changed since it was made.
pub(super) fn now(kind: RegionKind, entry: &MapsEntry) -> RegionKind {
    let is_accessible = entry.readable || entry.writable || entry.executable;
    match (kind, &entry.name) {
        (RegionKind::Anonymous | RegionKind::Reservation, MapsName::File { .. }) => RegionKind::File,
        (RegionKind::Anonymous | RegionKind::Reservation, _) if is_accessible => RegionKind::Anonymous,
        (RegionKind::Anonymous | RegionKind::Reservation, _) => RegionKind::Reservation,
        (kind, _) => kind,
    }
}

/// Cuts `range` at the borders of `entries` (ascending), and returns the bytes of each part with its entry;
/// parts in no entry are left out.
pub(super) fn parts<'a>(
    range: &Range<Avma>,
    entries: &'a [MapsEntry],
) -> impl Iterator<Item = (u64, &'a MapsEntry)> + use<'a> {
    let range = range.clone();
    let first = entries.partition_point(|entry| entry.range.end <= range.start);
    let rest = entries.get(first..).unwrap_or_default();
    let end = range.end;
    let overlapping = rest.iter().take_while(move |entry| entry.range.start < end);
    overlapping.map(move |entry| {
        let from = entry.range.start.max(range.start);
        (entry.range.end.min(range.end).offset_from(from), entry)
    })
}
