//! Memory of the allocator that holds no block in use. It is full of stale pointers, so it must not be a
//! root: blocks that only these lead to are lost.
//!
//! Only memory that the allocator's own structures prove to be unused counts as such. The structures are read
//! as untrusted input: in doubt, memory stays a root. Blocks that are in use and not listed, as they are
//! older than the trace, stay roots, too. The structures of glibc's malloc, of musl's, of jemalloc, of
//! gperftools' tcmalloc and of mimalloc are known; for other allocators, no structures and no allocator are
//! found. Memory that was freed during the trace is known for every allocator ([`seen`]).

mod agreement;
mod glibc;
mod granules;
mod heads;
mod jemalloc;
mod mimalloc;
mod musl;
mod records;
pub mod seen;
mod tcmalloc;
#[cfg(test)]
mod tests;
mod unused;

use super::Memory;
use super::heap::Heap;
use super::layout::Layout;
use memleak_process::maps::MapsEntry;
pub use unused::{Allocator, End, Facts, Listing, Unused};

/// Finds the unused memory of the process whose mappings are `maps`, and whose listed blocks are `heap`'s.
///
/// The process may be running: memory that is free when it is read can be allocated a moment later. Call
/// [`Unused::cut_out`] again for blocks that are listed after the reading.
pub fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let mut unused = glibc::find(memory, maps, heap);
    // A process has one C library.
    if unused.facts.allocator.is_none() {
        unused = musl::find(memory, maps, heap);
    }
    unused.join(jemalloc::find(memory, maps, heap));
    unused.join(tcmalloc::find(memory, maps, heap));
    unused.join(mimalloc::find(memory, maps, heap));
    unused
}

/// Lists the blocks that the process has from its allocators; `None` if the structures of no known allocator
/// are found.
///
/// The size of a block is its usable size. It stands for the time of the allocation, too, which is unknown: a
/// block of another size at the same address is another block. For glibc, blocks that begin in the middle of
/// their own mapping are not listed, and neither are those between memory that the program took by `sbrk`
/// itself and the next free chunk.
pub fn blocks_in_use(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Listing> {
    let (of_glibc, left) = glibc::in_use(memory, maps).unzip();
    let of_glibc = of_glibc.map(|blocks| (Allocator::Glibc, blocks));
    let of_libc = of_glibc.or_else(|| Some((Allocator::Musl, musl::in_use(memory, maps)?)));
    let of_jemalloc = jemalloc::in_use(memory, maps).map(|blocks| (Allocator::Jemalloc, blocks));
    let of_tcmalloc = tcmalloc::in_use(memory, maps).map(|blocks| (Allocator::Tcmalloc, blocks));
    let of_mimalloc = mimalloc::in_use(memory, maps).map(|blocks| (Allocator::Mimalloc, blocks));
    let found = [of_libc, of_jemalloc, of_tcmalloc, of_mimalloc];
    let found = found.into_iter().flatten();
    let (allocators, blocks): (Vec<_>, Vec<_>) = found.unzip();
    let mut blocks = blocks.concat();
    blocks.sort_unstable_by_key(|block| block.address);
    (!allocators.is_empty()).then_some(Listing {
        allocators,
        blocks,
        left: left.unwrap_or(0),
    })
}

/// Reads the uses of all memory of the process's allocators; of none whose structures are not known.
///
/// The process may be running: what changes while it is read counts as unknown, or as it was a moment before.
pub fn layouts(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Layout> {
    // A process has one C library.
    let of_libc = glibc::layout(memory, maps).or_else(|| musl::layout(memory, maps));
    of_libc
        .into_iter()
        .chain(jemalloc::layout(memory, maps))
        .chain(tcmalloc::layouts(memory, maps))
        .chain(mimalloc::layout(memory, maps))
        .collect()
}
