//! Uses of an allocator's memory: what is in blocks, what is kept for later blocks, and what the allocator
//! needs for itself.
//!
//! An allocator's memory is a sequence of [`Piece`]s, each of one [`Usage`]. A heap of ten million blocks has
//! as many pieces, so they are never collected: a reader keeps what it needs to tell them apart in a compact
//! form, and shows them one after the other ([`Pieces::visit`]), as often as it is asked to. Pieces that the
//! allocator can give back only together are of one [`Slab`], of blocks of one size.

use std::ops::Range;

use crate::free::Allocator;

/// Memory of an allocator, as it was when it was read.
pub struct Layout {
    pub allocator: Allocator,
    pub division: Division,
    pub arenas: Vec<Arena>,
    /// Bytes of address space that were not understood: of the arenas, which are pieces of unknown usage, and
    /// of mappings that the allocator counts and that were not found, which are not.
    pub unknown: u64,
    /// Number of the allocator's records that contradict themselves or others: the memory that they describe
    /// is missing, however much it is.
    pub refused: u64,
    pub pieces: Box<dyn Pieces>,
}

/// Part of an allocator that has its own memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Name as a person would say it: "main arena", "arena 3".
    pub name: String,
    /// Its memory, ascending, apart from each other.
    pub ranges: Vec<Range<u64>>,
    /// Bytes of which the allocator's own call gives back whole multiples of the free memory at the arena's
    /// end; `None` if it does not. Of glibc's arenas, only the main one gives it back, and only at the end of
    /// the heap segment.
    pub gives_top: Option<u64>,
}

/// Way in which an allocator divides its memory, and so how much its own call gives back to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// Chunks of any size, of which free neighbours are joined. The call (`malloc_trim`) gives back the whole
    /// pages inside free chunks.
    Chunks,
    /// Slabs, single blocks and free memory, each of whole pages. The call gives back all free memory outside
    /// of slabs.
    Extents,
    /// Slabs, which are given back as soon as they are empty: there is no call, and nothing to give back.
    Slots,
}

/// Purpose of a piece of the allocator's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    /// Block of the program, with its header and what was rounded up. `address` is the one that the program
    /// has.
    Block { address: u64 },
    /// Block that the program has freed, in a cache of a thread or of a CPU.
    Cached,
    /// Block that the program has freed, in a list of its arena. It is not joined with free neighbours until
    /// the allocator's own call, or a large allocation, does that (glibc's fast bins).
    Unjoined,
    /// Free memory.
    Free,
    /// Free memory at the end of an arena, from which the arena takes what its lists do not have.
    Top,
    /// The allocator's own records.
    Own,
    /// Memory of an arena that was not understood.
    Unknown,
}

impl Usage {
    /// Address that the program has of a block.
    pub fn address(self) -> Option<u64> {
        match self {
            Self::Block { address } => Some(address),
            Self::Cached | Self::Unjoined | Self::Free | Self::Top | Self::Own | Self::Unknown => None,
        }
    }

    /// True for free memory that is in no cache and no list of blocks that are not joined.
    pub fn is_free(self) -> bool {
        matches!(self, Self::Free | Self::Top)
    }
}

/// A piece of the allocator's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub range: Range<u64>,
    pub usage: Usage,
    /// Index in [`Layout::arenas`]; `None` for memory in no arena: blocks with mappings of their own, and the
    /// allocator's records of all arenas.
    pub arena: Option<usize>,
    /// The innermost slab with the piece; `None` outside of slabs.
    pub slab: Option<Slab>,
}

/// A slab, the memory of blocks of one size. A slab can be in a block of another slab, whose own pieces then
/// lack that block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// Address of its first byte, which identifies it.
    pub start: u64,
    /// Bytes of all of it.
    pub bytes: u64,
    /// Bytes of each of its blocks.
    pub block: u64,
}

/// Compact description of an allocator's pieces.
pub trait Pieces: Send {
    /// Calls `see` with each piece: arena by arena, in the order of their indices, ascending by address
    /// within an arena, without overlap; then those that are in no arena. None is empty. Memory of other
    /// usages than [`Usage::Block`] may be shown in several pieces.
    fn visit(&self, see: &mut dyn FnMut(&Piece));
}
