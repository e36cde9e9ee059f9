//! Walk from chunk to chunk, by their headers.
//!
//! A chunk begins with two words: the size of the chunk before it, if that is free, and its own size, with
//! flags. The memory that the program uses follows, up to and including the first word of the next chunk
//! (`struct malloc_chunk`, glibc's `malloc/malloc.c`).

use unwind_tables::addr::Avma;

use super::super::End;
use crate::Memory;

/// The chunk before is in use, or it is free and must not be joined with its neighbours.
pub(super) const PREV_INUSE: u64 = 1;
/// The chunk has its own mapping.
pub(super) const IS_MMAPPED: u64 = 2;
pub(super) const NON_MAIN_ARENA: u64 = 4;
pub(super) const FLAGS: u64 = PREV_INUSE | IS_MMAPPED | NON_MAIN_ARENA;

pub(super) const MIN_SIZE: u64 = 32;
pub(super) const HEADER: u64 = 16;
/// Size in the marks at an end that is not the top. No chunk is as small.
const FENCE_SIZE: u64 = 16;

/// Words that are read at once: a page at first, and where chunks are large, as only their headers are
/// needed; else up to 1 MiB.
const SMALL_PIECE: usize = 1 << 9;
const PIECE: usize = 1 << 17;
pub(super) const PAGE: u64 = 4096;
/// Factor by which pieces grow, and by which they shrink if not all of one can be read: there can be guard
/// pages in mappings (`MADV_GUARD_INSTALL`), which glibc has between stacks since 2.42.
const GROWTH: usize = 8;
/// Mean size in bytes from which chunks count as large.
const LARGE: u64 = 16 << 10;
/// Number of attempts to read a piece before a contradiction counts: the program may have changed it
/// meanwhile.
const TRIES: usize = 4;

/// Consecutive chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Address of the first chunk.
    pub first: u64,
    /// End of the memory, beyond which no chunk reaches.
    pub end: u64,
    pub is_main: bool,
    /// Address of the word with the address of the arena's top chunk.
    pub top_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub at: u64,
    pub size: u64,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Chunk in use, or in a thread's cache or a list of small free chunks.
    Used,
    Free,
    /// Rest of the arena. No chunk is behind it.
    Top,
}

/// Last chunk, of which only the use is not known yet: the next chunk's header has it.
#[derive(Clone, Copy, Debug)]
struct Pending {
    at: u64,
    size: u64,
    is_marked: bool,
}

#[derive(Clone, Copy, Debug)]
struct State {
    at: u64,
    pending: Option<Pending>,
    /// Number of words of the next piece.
    piece: usize,
}

/// Size in a header, without flags.
pub(super) fn size(word: u64) -> u64 {
    word & !FLAGS
}

/// Returns true if a chunk in use of an arena can have this header.
pub(super) fn is_header(word: u64, is_main: bool) -> bool {
    let size = size(word);
    let is_other = word & NON_MAIN_ARENA != 0;
    size >= MIN_SIZE && size.is_multiple_of(16) && word & IS_MMAPPED == 0 && !(is_main && is_other)
}

/// Calls `see` with each chunk of a stretch, ascending. Returns the reason for the end, and its address.
pub(super) fn walk(memory: &dyn Memory, stretch: &Stretch, see: &mut dyn FnMut(Chunk)) -> (End, u64) {
    let mut state = State {
        at: stretch.first,
        pending: None,
        piece: SMALL_PIECE,
    };
    let mut words = Vec::new();
    let mut chunks = Vec::new();
    loop {
        let begun = state.at;
        let ended = read_piece(memory, stretch, &mut state, &mut words, &mut chunks);
        let are_large = (state.at - begun) / LARGE >= chunks.len() as u64;
        state.piece = if are_large {
            SMALL_PIECE
        } else {
            PIECE.min(state.piece * GROWTH)
        };
        chunks.drain(..).for_each(&mut *see);
        if let Some(end) = ended {
            return (end, state.at);
        }
    }
}

/// Reads a piece, again if it contradicts itself, and goes on through it.
fn read_piece(
    memory: &dyn Memory,
    stretch: &Stretch,
    state: &mut State,
    words: &mut Vec<u64>,
    chunks: &mut Vec<Chunk>,
) -> Option<End> {
    let mut begun = *state;
    let mut ended = None;
    for _ in 0..TRIES {
        *state = begun;
        chunks.clear();
        begun.piece = SMALL_PIECE.max(begun.piece / GROWTH);
        // A small piece ends with its page.
        let most = match state.piece {
            SMALL_PIECE => SMALL_PIECE as u64 - state.at % PAGE / 8,
            larger => larger as u64,
        };
        let count = most.min(stretch.end.saturating_sub(state.at) / 8);
        words.resize(usize::try_from(count).unwrap_or(SMALL_PIECE), 0);
        let mut top = [0];
        let is_read =
            memory.read(Avma::new(stretch.top_at), &mut top) && memory.read(Avma::new(state.at), words);
        ended = match is_read {
            true => walk_piece(stretch, top[0], words, state, chunks),
            false => Some(End::Unreadable),
        };
        if !matches!(ended, Some(End::Malformed | End::Border | End::Unreadable)) {
            break;
        }
    }
    ended
}

/// Goes on through a piece that begins at the current chunk.
fn walk_piece(
    stretch: &Stretch,
    top: u64,
    words: &[u64],
    state: &mut State,
    chunks: &mut Vec<Chunk>,
) -> Option<End> {
    let first = state.at;
    loop {
        let at = state.at;
        if at == stretch.end {
            return Some(End::Border);
        }
        // Both words of the header, and those of headers that can follow a fence.
        let index = usize::try_from((at - first) / 8).unwrap_or(usize::MAX);
        let header = words.get(index..).unwrap_or_default();
        let &[before, word, ..] = header else {
            return if at == first { Some(End::Border) } else { None };
        };
        if header.len() < 6 && at != first && at + 8 * (header.len() as u64) < stretch.end {
            return None;
        }
        let followed_by = |headers: usize| header.get(2 * headers + 1).map(|word| size(*word));
        match settle(stretch, state.pending.take(), before, word) {
            Some(chunk) => chunks.extend(chunk),
            None => return Some(End::Malformed),
        }
        if size(word) == FENCE_SIZE && matches!(followed_by(1), None | Some(0 | FENCE_SIZE)) {
            // The rest of the old top before the fence can be as small as a mark.
            let marks = match [followed_by(1), followed_by(2)] {
                [Some(FENCE_SIZE), Some(FENCE_SIZE)] => 3,
                _ => 2,
            };
            state.at = at.saturating_add(marks * FENCE_SIZE);
            return Some(End::Fence);
        }
        let end = at.checked_add(size(word)).filter(|end| *end <= stretch.end);
        let Some(end) = end.filter(|_| is_header(word, stretch.is_main)) else {
            return Some(End::Malformed);
        };
        let size = size(word);
        state.at = end;
        if at == top {
            chunks.push(Chunk {
                at,
                size,
                kind: Kind::Top,
            });
            return Some(End::Top);
        }
        state.pending = Some(Pending {
            at,
            size,
            is_marked: word & NON_MAIN_ARENA != 0,
        });
    }
}

/// Completes the pending chunk by the header behind it; `None` if they contradict each other.
fn settle(stretch: &Stretch, pending: Option<Pending>, before: u64, word: u64) -> Option<Option<Chunk>> {
    let is_free = word & PREV_INUSE == 0;
    let Some(pending) = pending else {
        // No free chunk can be before the first one of an arena; a walk from a later one begins where the
        // chunk's own header is valid.
        return Some(None);
    };
    // Free chunks of other arenas do not always have the flag `NON_MAIN_ARENA`.
    let is_right = match is_free {
        true => before == pending.size,
        false => pending.is_marked != stretch.is_main,
    };
    is_right.then_some(Some(Chunk {
        at: pending.at,
        size: pending.size,
        kind: if is_free { Kind::Free } else { Kind::Used },
    }))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::free::tests::read;

    const SEGMENT: u64 = 0x7f00_0010_0000;

    /// Two segments of a page each, the first with marks at its end.
    struct Segments(Vec<(u64, Vec<u64>)>);

    impl Segments {
        /// The first segment has a chunk, and behind it `marks` of 16 bytes; the second has the top.
        fn with_marks(marks: u64) -> Self {
            let mut words = vec![0; 1024];
            let first_mark = PAGE - marks * FENCE_SIZE;
            words[1] = first_mark | PREV_INUSE;
            for mark in 0..marks {
                let index = usize::try_from((first_mark + mark * FENCE_SIZE) / 8).expect("small");
                words[index + 1] = FENCE_SIZE | PREV_INUSE;
            }
            words[512 + 1] = PAGE | PREV_INUSE;
            let top_at = vec![SEGMENT + PAGE];
            Self(vec![(SEGMENT, words), (SEGMENT - PAGE, top_at)])
        }

        fn walk_from(&self, first: u64) -> (End, u64) {
            let stretch = Stretch {
                first,
                end: SEGMENT + 2 * PAGE,
                is_main: true,
                top_at: SEGMENT - PAGE,
            };
            walk(self, &stretch, &mut |_| {})
        }
    }

    impl Memory for Segments {
        fn visit(&self, _: &[Range<Avma>], _: &mut dyn FnMut(Avma, &[u64])) {
            unreachable!("a walk reads");
        }

        fn read(&self, at: Avma, words: &mut [u64]) -> bool {
            read(&self.0, at, words)
        }
    }

    /// A walk ends where the next segment begins, also if the old top is as small as a mark.
    #[test]
    fn marks_at_the_end_of_a_segment() {
        for marks in [2, 3] {
            let segments = Segments::with_marks(marks);
            let next = SEGMENT + PAGE;
            assert_eq!(segments.walk_from(SEGMENT), (End::Fence, next), "{marks}");
            assert_eq!(segments.walk_from(next), (End::Top, next + PAGE), "{marks}");
        }
    }
}
