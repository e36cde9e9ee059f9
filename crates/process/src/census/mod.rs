//! Census of all memory that a process is responsible for: its mappings by purpose, and what the kernel keeps
//! for it beside them.
//!
//! [`Quick`] is a reading that can be taken once a second: sums that the kernel has ready. [`Census`] is the
//! full one, for a few times a minute: the kernel visits each page table for it. Nothing is stopped or
//! written, and only pages are read that are resident.
//!
//! Classifying is pure: [`classify::pieces`] takes parsed mappings and a reader of memory. Everything that
//! the process could have written is untrusted: names, records of allocators and of threads. Wrong ones lead
//! to a wrong kind of their own mapping, and to nothing else; sums are the kernel's.

pub mod cgroup;
pub mod classify;
pub mod contents;
pub mod descriptors;
pub mod files;
mod heaps;
pub mod huge;
mod images;
pub mod kind;
pub mod mounts;
mod netlink;
pub mod pieces;
mod proc_files;
pub mod purpose;
pub mod quick;
mod runtimes;
pub mod sockets;
pub mod stacks;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;

use unwind_tables::addr::Avma;

use self::cgroup::CgroupMemory;
use self::classify::Facts;
use self::contents::{Contents, ProcessContents};
use self::descriptors::{Descriptors, Mapped};
use self::files::FileMemory;
use self::huge::HugeSurplus;
use self::kind::{Kind, Kinds};
use self::mounts::Mounts;
use self::pieces::Piece;
use self::proc_files::{MAX_BYTES, read};
use self::quick::Quick;
use self::sockets::Sockets;
use self::stacks::{StackSum, ThreadStack, ThreadState};
use crate::smaps::{self, Resident};

/// Maximum size of an smaps file in bytes. It has some 700 per mapping.
const MAX_SMAPS_BYTES: u64 = 128 << 20;
/// Size of stacks if the process has no limit: that of glibc on x86-64.
const USUAL_STACK: u64 = 8 << 20;

/// Start of the random numbers that select pages: readings of an unchanged process agree.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Knowledge of the caller about a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Ranges of an allocator's memory, ascending, none of which overlap.
    pub heaps: &'a [Range<Avma>],
    /// Stack pointers of threads, ascending, for stacks that no C library describes.
    pub stack_pointers: &'a [Avma],
}

/// Memory of a process at one moment.
#[derive(Clone, Debug)]
pub struct Census {
    /// Sums of the kernel. They are read before the mappings: a process that runs can differ a little.
    pub quick: Quick,
    /// All mappings, ascending.
    pub mappings: Vec<Resident>,
    /// The mappings in pieces, each of one kind, ascending.
    pub pieces: Vec<Piece>,
    /// Stacks that a C library has made for threads.
    pub stacks: Vec<ThreadStack>,
    pub huge: HugeSurplus,
    /// Open files; `None` if they may not be read.
    pub descriptors: Option<Descriptors>,
    pub sockets: Sockets,
    /// Memory of the process's control group; `None` if none counts it.
    pub cgroup: Option<CgroupMemory>,
}

impl Census {
    /// Reads the memory of process `pid`, which alone identifies it: call this only while it is known to run.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    pub fn take(pid: u32, known: &Known<'_>) -> io::Result<Self> {
        let quick = Quick::read(pid)?;
        let mappings = smaps::parse(&read(pid, "smaps", MAX_SMAPS_BYTES)?);
        if mappings.is_empty() {
            // A process that has ended and was not waited for has no mappings, and no error either.
            return Err(io::ErrorKind::NotFound.into());
        }
        let mounts = Mounts::parse(&read(pid, "mountinfo", MAX_BYTES).unwrap_or_default());
        let limits = read(pid, "limits", MAX_BYTES).unwrap_or_default();
        let usual_stack = quick::soft_limit(&limits, "Max stack size").unwrap_or(USUAL_STACK);
        let contents = ProcessContents::open(pid);
        let contents: &dyn Contents = match &contents {
            Ok(contents) => contents,
            Err(_) => &Unreadable,
        };
        let stacks = stacks::find(contents, &mappings, usual_stack);
        let facts = Facts {
            contents,
            heaps: known.heaps,
            stack_pointers: known.stack_pointers,
            stacks: &stacks,
            mounts: &mounts,
        };
        let pieces = classify::pieces(&mappings, &facts);
        let mapped = Mapped::of(&mappings, &pieces);
        let descriptors = Descriptors::read(pid, &mapped, &mounts).ok();
        let inodes = descriptors.as_ref().map(|found| &found.sockets);
        Ok(Self {
            huge: huge::surplus(contents, &mappings, SEED),
            sockets: inodes.map_or_else(Sockets::default, |inodes| netlink::sockets(pid, inodes)),
            cgroup: CgroupMemory::read(pid),
            quick,
            pieces,
            mappings,
            stacks,
            descriptors,
        })
    }

    /// Memory by kind.
    pub fn by_kind(&self) -> Kinds {
        let mut kinds = Kinds::default();
        for piece in &self.pieces {
            kinds.add(piece.kind, &piece.amounts);
        }
        kinds
    }

    /// Stacks of threads in one state.
    pub fn stacks_that(&self, state: ThreadState) -> StackSum {
        StackSum::of(&self.stacks, &self.mappings, state)
    }

    /// Mapped files with the most resident memory, descending, at most `count`.
    pub fn largest_files(&self, count: usize) -> Vec<FileMemory> {
        files::largest(&self.mappings, &self.pieces, count)
    }

    /// Memory of no known purpose, pieces with the most resident memory first.
    pub fn unexplained(&self) -> Vec<&Piece> {
        let pieces = self.pieces.iter();
        let mut unexplained: Vec<_> = pieces.filter(|piece| piece.kind == Kind::Unexplained).collect();
        unexplained.sort_by_key(|piece| std::cmp::Reverse(piece.amounts.resident));
        unexplained
    }
}

/// Memory of a process that this one may not read.
#[derive(Debug)]
struct Unreadable;

impl Contents for Unreadable {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn resident(&self, _: u64, _: usize) -> usize {
        0
    }
}
