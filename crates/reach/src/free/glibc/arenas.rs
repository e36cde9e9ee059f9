//! Arenas: the main one, whose state is in the C library's data, and others, whose states are in their own
//! memory.
//!
//! The state (`struct malloc_state`) is found by its bins: both links of an empty bin lead to the address two
//! words before them, as if a chunk's header were there. States are linked in a ring, which must close.

use std::collections::BTreeSet;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::walk::PAGE;
use crate::Memory;
use memleak_process::maps::{MapsEntry, MapsName};

/// Number of bins, each a pair of links. The last one is always empty.
const BINS: usize = 127;
/// Bytes from the first bin to the link of the ring: the bins and their bitmap.
const BINS_TO_NEXT: u64 = 16 * BINS as u64 + 16;
/// Bytes from that link to the bytes that the arena has from the kernel (`system_mem`).
const NEXT_TO_MEMORY: u64 = 3 * 8;
/// Bytes from the first bin to the end of the state.
const BINS_TO_END: u64 = BINS_TO_NEXT + 5 * 8;

/// Bytes from a state to its first bin: in 2.27 to 2.42, in 2.26, and since 2.43, which has no lists of small
/// free chunks.
const STATE_TO_BINS: [u64; 3] = [112, 104, 24];
/// Number of lists of small free chunks, of 32 bytes, 48 and so on. The lists end two words before the bins.
pub(super) const FAST_BINS: u64 = 10;

/// Bytes from a heap, of which all arenas but the main one consist, to the state in it (`struct heap_info`):
/// since 2.35, and before.
const HEAP_HEADERS: [u64; 2] = [48, 32];
/// Alignments of heaps: the usual one, and those by sizes of huge pages (`glibc.malloc.hugetlb`).
const HEAP_ALIGNMENTS: [u64; 6] = [64 << 20, 8 << 20, 128 << 20, 1 << 30, 2 << 30, 4 << 30];

/// Bytes before the main arena's state that contain the allocator's parameters.
const PARAMETERS: u64 = PAGE;

const MAX_ARENAS: usize = 1 << 14;
const MAX_HEAPS: usize = 1 << 16;
/// Bytes of data that are searched for a state.
const MAX_SEARCHED: u64 = 256 << 20;
/// Bytes that are read at once, and bytes from one read to the next. Reads overlap by more than the size of a
/// state.
const PIECE: u64 = STEP as u64 + 4096;
const STEP: usize = (1 << 20) - 4096;

/// State of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    pub state: u64,
    pub is_main: bool,
    to_bins: u64,
}

/// Memory of an arena that is not the main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaHeap {
    pub first_chunk: u64,
    /// From the heap's header to the end of the memory that can contain chunks.
    pub range: (u64, u64),
    /// End of the memory that was ever in use.
    pub touched: u64,
}

impl Arena {
    /// Address of the word with the top chunk's address.
    pub(super) fn top_at(&self) -> u64 {
        self.bins().wrapping_sub(16)
    }

    fn bins(&self) -> u64 {
        self.state.wrapping_add(self.to_bins)
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.state..self.bins().saturating_add(BINS_TO_END)
    }

    /// Address of the lists of small free chunks, which ascend by size.
    pub(super) fn fast_bins_at(&self) -> Option<u64> {
        let at = self.bins().wrapping_sub(16 + FAST_BINS * 8);
        (at >= self.state).then_some(at)
    }

    pub(super) fn top(&self, memory: &dyn Memory) -> Option<u64> {
        word(memory, self.top_at())
    }

    /// Bytes that the arena has from the kernel, also those that the program took by `sbrk` meanwhile.
    pub(super) fn system_memory(&self, memory: &dyn Memory) -> Option<u64> {
        let at = self.bins().checked_add(BINS_TO_NEXT + NEXT_TO_MEMORY)?;
        word(memory, at).filter(|bytes| *bytes < 1 << 57)
    }

    /// Free chunks at the ends of the bins' lists. They lead back to their bins, so they are known to be
    /// chunks.
    pub(super) fn binned(&self, memory: &dyn Memory) -> BTreeSet<u64> {
        let mut links = [0; 2 * BINS];
        let mut found = BTreeSet::new();
        if !memory.read(Avma::new(self.bins()), &mut links) {
            return found;
        }
        for (pair, at) in links.chunks_exact(2).zip((self.bins()..).step_by(16)) {
            let bin = at.wrapping_sub(16);
            // The first chunk's link back leads to the bin, and so does the last chunk's link forward.
            for (chunk, link) in [(pair[0], 24), (pair[1], 16)] {
                let is_linked = || word(memory, chunk.wrapping_add(link)) == Some(bin);
                if chunk != bin && chunk.is_multiple_of(16) && is_linked() {
                    found.insert(chunk);
                }
            }
        }
        found
    }

    /// Words before the main arena's state in the C library's data, where the allocator's parameters are: one
    /// is the address of the first chunk in the heap segment (`mp_.sbrk_base`).
    pub(super) fn parameters(&self, memory: &dyn Memory) -> Vec<u64> {
        let mut found = Vec::new();
        let border = self.state & !(PAGE - 1);
        for span in [self.state.saturating_sub(PARAMETERS)..border, border..self.state] {
            let mut words = vec![0; usize::try_from((span.end - span.start) / 8).unwrap_or_default()];
            if memory.read(Avma::new(span.start), &mut words) {
                found.extend(words);
            }
        }
        found
    }

    /// Heaps of an arena other than the main one.
    pub(super) fn heaps(&self, memory: &dyn Memory) -> Vec<ArenaHeap> {
        let Some(header) = heap_header(memory, self.state) else {
            return Vec::new();
        };
        let first = self.state - header;
        let mut found = BTreeSet::from([first]);
        let newest = self.top(memory).and_then(|top| {
            let starts = HEAP_ALIGNMENTS.map(|alignment| top & !(alignment - 1));
            starts
                .into_iter()
                .find(|start| word(memory, *start) == Some(self.state))
        });
        // Each heap leads to the one before it.
        let mut next = newest;
        while let Some(heap) = next.filter(|heap| *heap != first && found.len() < MAX_HEAPS) {
            let is_new = word(memory, heap) == Some(self.state) && found.insert(heap);
            next = word(memory, heap.wrapping_add(8)).filter(|_| is_new);
        }
        let first_chunk = |heap: u64| match heap == first {
            true => self.range().end.saturating_add(15) & !15,
            false => heap.saturating_add(header),
        };
        let heaps = found.into_iter();
        heaps
            .filter_map(|heap| read_heap(memory, self.state, heap, first_chunk(heap)))
            .collect()
    }
}

fn read_heap(memory: &dyn Memory, state: u64, heap: u64, first_chunk: u64) -> Option<ArenaHeap> {
    let mut words = [0; 4];
    if !memory.read(Avma::new(heap), &mut words) || words[0] != state {
        return None;
    }
    let [_, _, size, touched] = words;
    let end = heap.checked_add(size)?;
    let touched = heap.checked_add(touched)?;
    let is_right = size.is_multiple_of(PAGE) && first_chunk < end && end <= touched;
    (is_right && touched - heap <= HEAP_ALIGNMENTS[5]).then_some(ArenaHeap {
        first_chunk,
        range: (heap, end),
        touched,
    })
}

/// Bytes from the heap's start to the state, if there is a heap.
fn heap_header(memory: &dyn Memory, state: u64) -> Option<u64> {
    let is_heap = |header: &u64| {
        let heap = state
            .checked_sub(*header)
            .filter(|heap| heap.is_multiple_of(1 << 20));
        heap.is_some_and(|heap| word(memory, heap) == Some(state))
    };
    HEAP_HEADERS.into_iter().find(is_heap)
}

/// Finds all arenas, each main one before those that it is linked with. There are several main ones if there
/// are several C libraries (`dlmopen`).
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Arena> {
    let is_data = |entry: &&MapsEntry| {
        entry.readable && entry.writable && !entry.shared && matches!(entry.name, MapsName::File { .. })
    };
    let mut data: Vec<_> = maps.iter().filter(is_data).collect();
    data.sort_by_key(|entry| !is_libc(entry));
    let mut arenas = Vec::new();
    let mut searched = 0;
    for entry in data {
        let (start, end) = (entry.range.start.get(), entry.range.end.get());
        if searched > MAX_SEARCHED {
            break;
        }
        let end = end.min(start.saturating_add(MAX_SEARCHED));
        searched += end - start;
        for at in (start..end).step_by(STEP) {
            search(memory, at, (end - at).min(PIECE), &mut arenas);
        }
    }
    arenas
}

fn is_libc(entry: &MapsEntry) -> bool {
    match &entry.name {
        MapsName::File { path, .. } => path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("libc")),
        MapsName::Anonymous | MapsName::Special(_) => false,
    }
}

/// Adds the arenas whose main one is in a piece of data.
fn search(memory: &dyn Memory, start: u64, bytes: u64, arenas: &mut Vec<Arena>) {
    let mut words = vec![0; usize::try_from(bytes / 8).unwrap_or_default()];
    if !memory.read(Avma::new(start), &mut words) {
        return;
    }
    // The last bin is always empty.
    for last in 2 * (BINS - 1)..words.len().saturating_sub(1) {
        let address = |index: usize| start + 8 * index as u64;
        let is_empty = |index: usize| {
            words[index] == address(index).wrapping_sub(16) && words[index + 1] == words[index]
        };
        let is_bin =
            |index: usize| is_empty(index) || is_pointer(words[index]) && is_pointer(words[index + 1]);
        let bins = last - 2 * (BINS - 1);
        if !is_empty(last) || !(bins..last).step_by(2).all(is_bin) {
            continue;
        }
        let ring = STATE_TO_BINS.into_iter().find_map(|to_bins| {
            let state = address(bins).checked_sub(to_bins)?;
            ring(
                memory,
                Arena {
                    state,
                    is_main: true,
                    to_bins,
                },
            )
        });
        for arena in ring.unwrap_or_default() {
            if !arenas.contains(&arena) && arenas.len() < MAX_ARENAS {
                arenas.push(arena);
            }
        }
    }
}

/// Arenas from the main one on, if their ring closes.
fn ring(memory: &dyn Memory, main: Arena) -> Option<Vec<Arena>> {
    let mut arenas = vec![main];
    loop {
        let last = arenas.last()?;
        let next = word(memory, last.bins().checked_add(BINS_TO_NEXT)?)?;
        if next == main.state {
            return Some(arenas);
        }
        heap_header(memory, next)?;
        if arenas.len() == MAX_ARENAS {
            return None;
        }
        arenas.push(Arena {
            state: next,
            is_main: false,
            ..main
        });
    }
}

fn is_pointer(word: u64) -> bool {
    word.is_multiple_of(16) && (1 << 12..1 << 56).contains(&word)
}

pub(super) fn word(memory: &dyn Memory, at: u64) -> Option<u64> {
    let mut word = [0];
    (at.is_multiple_of(8) && memory.read(Avma::new(at), &mut word)).then_some(word[0])
}
