//! State of the allocator (`struct malloc_context`), which is in the data of the C library, or of a static
//! program.
//!
//! The state is found by its shape: it begins with the process's secret, a random word, and has the addresses
//! of the first and of the last area of records, which both begin with the same word.

use std::collections::BTreeSet;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::groups::{AREA, AREA_HEAD};
use crate::Memory;
use memleak_process::maps::{MapsEntry, MapsName};

/// Words from the secret to the address of the first area: if the page size is known when musl is built
/// (x86-64), and if a word of the state has it.
const TO_AREAS: [usize; 2] = [7, 8];
/// Words from that address back to one whose lower half is 1 once anything was allocated.
const BACK_TO_DONE: usize = 6;
/// Bytes from that address to the end: addresses of three areas, a group and a number for each of 48 classes,
/// two bytes each for 32 of these, and two words.
const AREAS_TO_END: u64 = 3 * 8 + 48 * 2 * 8 + 2 * 32 + 2 * 8;

/// Maximum number of states. There is more than one only if a program has a further allocator of this kind.
const MAX_CONTEXTS: usize = 16;
/// Maximum number of areas of one state: 3 million groups.
const MAX_AREAS: usize = 1 << 15;
/// Bytes of data that are searched, of one object and of all.
const MAX_SEARCHED: u64 = 64 << 20;
const MAX_SEARCHED_IN_ALL: u64 = 512 << 20;
/// Bytes that are read at once, and bytes from one read to the next. Reads overlap.
const PIECE: u64 = STEP as u64 + 4096;
const STEP: usize = (1 << 20) - 4096;

/// State of one allocator.
#[derive(Debug)]
pub(super) struct Context {
    pub secret: u64,
    range: Range<u64>,
    /// Addresses of its areas of records, up to the first one that could not be read.
    pub areas: Vec<u64>,
}

impl Context {
    /// Memory in which the allocator keeps its records.
    pub(super) fn own(&self) -> impl Iterator<Item = Range<u64>> {
        let areas = self.areas.iter().map(|at| *at..at.saturating_add(AREA));
        areas.chain([self.range.clone()])
    }
}

/// Finds all states. Those in a C library by name are searched first.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Context> {
    let mut contexts = Vec::new();
    let mut searched = 0;
    for Range { start, end } in data(maps) {
        let end = end.min(start.saturating_add(MAX_SEARCHED));
        if searched >= MAX_SEARCHED_IN_ALL {
            break;
        }
        searched += end - start;
        for at in (start..end).step_by(STEP) {
            search(memory, at, (end - at).min(PIECE), &mut contexts);
        }
    }
    contexts
}

/// Data of objects, with the memory behind it that is zeros in the file (`.bss`).
fn data(maps: &[MapsEntry]) -> Vec<Range<u64>> {
    let mut found: Vec<(bool, Range<u64>)> = Vec::new();
    for entry in maps {
        let range = entry.range.start.get()..entry.range.end.get();
        if !entry.readable || !entry.writable || entry.shared {
            continue;
        }
        let before = found.last_mut().filter(|(_, last)| last.end == range.start);
        match (&entry.name, before) {
            (MapsName::File { .. } | MapsName::Anonymous, Some((_, last))) => last.end = range.end,
            (MapsName::Special(name), Some((_, last))) if name == "[heap]" => last.end = range.end,
            (MapsName::File { path, .. }, None) => {
                let name = path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default();
                let is_libc = name.starts_with("libc") || name.starts_with("ld-musl");
                found.push((is_libc, range));
            }
            (MapsName::Special(_), _) | (MapsName::Anonymous, None) => {}
        }
    }
    found.sort_by_key(|(is_libc, _)| !is_libc);
    found.into_iter().map(|(_, range)| range).collect()
}

/// Adds the states that begin in a piece of data.
fn search(memory: &dyn Memory, start: u64, bytes: u64, contexts: &mut Vec<Context>) {
    let mut words = vec![0; usize::try_from(bytes / 8).unwrap_or_default()];
    if !memory.read(Avma::new(start), &mut words) {
        return;
    }
    let is_area = |at: u64| at != 0 && at.is_multiple_of(AREA);
    for (first, pair) in words.windows(2).enumerate().skip(TO_AREAS[0]) {
        let &[head, tail] = pair else {
            continue;
        };
        if !is_area(head) || !is_area(tail) || words[first - BACK_TO_DONE] & 0xffff_ffff != 1 {
            continue;
        }
        for to_areas in TO_AREAS {
            let Some(secret) = first.checked_sub(to_areas).map(|at| words[at]) else {
                continue;
            };
            let begins_so = |area: u64| {
                let mut word = [0];
                memory.read(Avma::new(area), &mut word) && word == [secret]
            };
            let at = start + 8 * (first - to_areas) as u64;
            let is_new = contexts.iter().all(|context| context.range.start != at);
            if secret != 0 && is_new && contexts.len() < MAX_CONTEXTS && begins_so(head) && begins_so(tail) {
                let end = start + 8 * first as u64 + AREAS_TO_END;
                contexts.push(Context {
                    secret,
                    range: at..end,
                    areas: areas(memory, secret, head),
                });
            }
        }
    }
}

/// Addresses of the areas from the first one on, each of which leads to the next.
fn areas(memory: &dyn Memory, secret: u64, first: u64) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let mut areas = Vec::new();
    let mut next = first;
    while next != 0 && next.is_multiple_of(AREA) && areas.len() < MAX_AREAS && seen.insert(next) {
        let mut head = [0; AREA_HEAD];
        if !memory.read(Avma::new(next), &mut head) || head[0] != secret {
            break;
        }
        areas.push(next);
        next = head[1];
    }
    areas
}
