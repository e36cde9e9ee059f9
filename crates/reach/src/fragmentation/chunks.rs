//! Free memory between the blocks of a heap of chunks.

use std::ops::Range;

use super::held::{Held, pages_within};
use super::pinning::{Pinned, Pinning};
use crate::layout::{Piece, Usage};
use memleak_base::pages;

/// Bytes of a run of free memory from which on it does not count as pinned: from this size on, glibc gives
/// memory at the end of its heap back to the kernel by itself (`M_TRIM_THRESHOLD`, mallopt(3)), so this is
/// worth a system call to it.
pub const LEAST_RETURNED: u64 = 128 << 10;
/// Bytes at the start of a free chunk that `malloc_trim` leaves: the six words of a large free chunk's header
/// (`struct malloc_chunk`).
const FREE_HEADER: u64 = 48;
/// Least size of the top, and one byte more, which trimming leaves (`systrim` of glibc's `malloc/malloc.c`,
/// in which the call's pad is 0).
const LEAST_TOP: u64 = 32 + 1;

/// Free memory that is joined by `malloc_trim`, which first empties the lists of small free chunks. The top
/// is joined with nothing behind it: there can be other memory of the arena that is adjacent by chance.
#[derive(Debug, Default)]
pub(super) struct Joined {
    range: Option<Range<u64>>,
    has_top: bool,
}

impl Joined {
    /// Adds the next piece. Returns the bytes that the call would give back of the free memory before it.
    pub(super) fn add(&mut self, piece: &Piece, gives_top: Option<u64>, held: &mut Held<'_>) -> u64 {
        let is_joined = matches!(piece.usage, Usage::Free | Usage::Unjoined | Usage::Top);
        let is_top = piece.usage == Usage::Top;
        if let Some(range) = &mut self.range
            && is_joined
            && range.end == piece.range.start
            && (is_top || !self.has_top)
        {
            range.end = piece.range.end;
            self.has_top |= is_top;
            return 0;
        }
        let given = self.end(gives_top, held);
        if is_joined {
            self.range = Some(piece.range.clone());
            self.has_top = is_top;
        }
        given
    }

    /// Ends the free memory, and returns the bytes of it that the call would give back: the whole pages
    /// behind its header; of the top, whole multiples of `gives_top` bytes from its end on.
    pub(super) fn end(&mut self, gives_top: Option<u64>, held: &mut Held<'_>) -> u64 {
        let has_top = std::mem::take(&mut self.has_top);
        let Some(Range { start, end }) = self.range.take() else {
            return 0;
        };
        let given = match (has_top, gives_top) {
            (false, _) => pages_within(&(start.saturating_add(FREE_HEADER).min(end)..end)),
            (true, None) => end..end,
            (true, Some(unit)) => {
                let size = (end - start).saturating_sub(LEAST_TOP);
                end - size / unit.max(1) * unit..end
            }
        };
        held.bytes(&given)
    }
}

/// Neighbour of a run of free and cached memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Neighbour {
    Block(Pinning),
    /// The allocator's own records.
    Own,
    /// Nothing that is known.
    #[default]
    Gap,
}

impl Neighbour {
    /// Charges bytes to the neighbour, if there is one.
    fn charge(&mut self, bytes: u64) -> Pinned {
        match self {
            Self::Block(block) => {
                block.pinned += bytes;
                Pinned {
                    by_blocks: bytes,
                    by_own: 0,
                }
            }
            Self::Own => Pinned {
                by_blocks: 0,
                by_own: bytes,
            },
            Self::Gap => Pinned::default(),
        }
    }
}

/// A run of free and cached memory.
#[derive(Debug)]
struct Run {
    range: Range<u64>,
    held: u64,
    has_top: bool,
}

/// Blocks of an arena, and the memory between them, by address.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// End of the last piece.
    end: u64,
    /// Before the run; of a block, with what it pins of the run before it.
    before: Neighbour,
    run: Option<Run>,
}

impl Chunks {
    /// Adds the next piece, of which `bytes` bytes are held. Shows the block before the last run once nothing
    /// more can be charged to it.
    pub(super) fn add(
        &mut self,
        piece: &Piece,
        bytes: u64,
        held: &mut Held<'_>,
        see: &mut dyn FnMut(&Pinning),
    ) -> Pinned {
        let mut pinned = Pinned::default();
        let has_top = self.run.as_ref().is_some_and(|run| run.has_top);
        if piece.range.start != self.end || has_top && piece.usage != Usage::Top {
            pinned = self.end(held, see);
        }
        self.end = piece.range.end;
        let next = match piece.usage {
            Usage::Cached | Usage::Unjoined | Usage::Free | Usage::Top => {
                self.extend(piece, bytes);
                return pinned;
            }
            Usage::Block { address } => Neighbour::Block(Pinning {
                address,
                end: piece.range.end,
                bytes: piece.range.end - piece.range.start,
                pinned: 0,
            }),
            Usage::Own => Neighbour::Own,
            Usage::Unknown => Neighbour::Gap,
        };
        pinned += self.close(next, held, see);
        pinned
    }

    /// Ends the consecutive pieces.
    pub(super) fn end(&mut self, held: &mut Held<'_>, see: &mut dyn FnMut(&Pinning)) -> Pinned {
        let pinned = self.close(Neighbour::Gap, held, see);
        self.before = Neighbour::Gap;
        pinned
    }

    fn extend(&mut self, piece: &Piece, bytes: u64) {
        let run = self.run.get_or_insert(Run {
            range: piece.range.start..piece.range.start,
            held: 0,
            has_top: false,
        });
        run.range.end = piece.range.end;
        run.held += bytes;
        run.has_top |= piece.usage == Usage::Top;
    }

    /// Ends the run before `next`, and charges it to its neighbours.
    fn close(&mut self, mut next: Neighbour, held: &mut Held<'_>, see: &mut dyn FnMut(&Pinning)) -> Pinned {
        let mut pinned = Pinned::default();
        if let Some(run) = self.run.take() {
            let [left, right] = run.shares(&self.before, &next, held);
            pinned += self.before.charge(left);
            pinned += next.charge(right);
        }
        if let Neighbour::Block(block) = std::mem::replace(&mut self.before, next) {
            see(&block);
        }
        pinned
    }
}

impl Run {
    /// Bytes that the neighbours before and behind pin.
    fn shares(&self, before: &Neighbour, behind: &Neighbour, held: &mut Held<'_>) -> [u64; 2] {
        let size = pages::bytes();
        let Range { start, end } = self.range;
        let edges = [
            start..start.checked_next_multiple_of(size).unwrap_or(end).min(end),
            (end / size * size).max(start)..end,
        ];
        let [is_before, is_behind] = [before, behind].map(|neighbour| *neighbour != Neighbour::Gap);
        if self.has_top {
            return [if is_before { held.bytes(&edges[0]) } else { 0 }, 0];
        }
        if self.held < LEAST_RETURNED {
            return match (is_before, is_behind) {
                (true, true) => [self.held / 2, self.held - self.held / 2],
                (true, false) => [self.held, 0],
                (false, true) => [0, self.held],
                (false, false) => [0, 0],
            };
        }
        // The run is longer than two pages, so that the edges are apart.
        let [first, last] = edges.map(|edge| held.bytes(&edge));
        [
            if is_before { first } else { 0 },
            if is_behind { last } else { 0 },
        ]
    }
}
