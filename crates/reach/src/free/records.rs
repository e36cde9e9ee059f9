//! Records of a fixed number of words, at many places, and the data of objects, in which allocators keep the
//! anchors of their structures.

use std::ops::Range;

use unwind_tables::addr::Avma;

use crate::Memory;
use memleak_process::maps::{MapsEntry, MapsName};

pub(super) const PAGE: u64 = 4096;
/// Maximum number of bytes of one object's data that are searched.
const MAX_DATA: u64 = 64 << 20;

/// Calls `see` with the words of the record at each of `places`, which ascend and are at least the length of
/// a record apart. Leaves out records in memory that was never touched.
pub(super) fn visit<const N: usize>(
    memory: &dyn Memory,
    places: &[u64],
    see: &mut dyn FnMut(u64, &[u64; N]),
) {
    if places.is_empty() {
        return;
    }
    let bytes = 8 * N as u64;
    let ranges: Vec<_> = places
        .iter()
        .map(|at| range(&(*at..at.saturating_add(bytes))))
        .collect();
    let mut divided = Vec::new();
    memory.visit(&ranges, &mut |at, words| match words.try_into() {
        Ok(words) => see(at.get(), words),
        Err(_) => divided.push(at.get()),
    });
    // A record is shown in parts if a single read does not cover it.
    for at in divided {
        let mut words = [0; N];
        if places.binary_search(&at).is_ok() && memory.read(Avma::new(at), &mut words) {
            see(at, &words);
        }
    }
}

pub(super) fn range(range: &Range<u64>) -> Range<Avma> {
    Avma::new(range.start)..Avma::new(range.end)
}

/// Returns true for memory that an allocator can have taken from the kernel.
pub(super) fn is_of_allocators(entry: &MapsEntry) -> bool {
    let is_anonymous = match &entry.name {
        MapsName::Anonymous => true,
        MapsName::Special(name) => name.starts_with("[anon:"),
        MapsName::File { .. } => false,
    };
    is_anonymous && entry.readable && entry.writable && !entry.shared
}

/// Data of objects: mappings of files, and the memory that follows them.
pub(super) fn data(maps: &[MapsEntry]) -> Vec<Range<u64>> {
    let mut data: Vec<Range<u64>> = Vec::new();
    for entry in maps
        .iter()
        .filter(|entry| entry.readable && entry.writable && !entry.shared)
    {
        let (start, end) = (entry.range.start.get(), entry.range.end.get());
        let before = data.last_mut().filter(|before| before.end == start);
        match (&entry.name, before) {
            (MapsName::File { .. } | MapsName::Anonymous | MapsName::Special(_), Some(before)) => {
                before.end = end
            }
            (MapsName::File { .. }, None) => data.push(start..end),
            (MapsName::Anonymous | MapsName::Special(_), None) => {}
        }
    }
    for data in &mut data {
        data.end = data.end.min(data.start.saturating_add(MAX_DATA));
    }
    data
}
