//! Census of all memory that a process is responsible for: its mappings by purpose, and what the kernel keeps
//! for it beside them.
//!
//! [`Quick`] is a reading that can be taken once a second: sums that the kernel has ready. [`Census`] is the
//! full one, for a few times a minute: the kernel visits each page table for it. [`Divided`] and [`Beside`]
//! are its two parts. Nothing is stopped or written, and only pages are read that are resident.
//!
//! Classifying is pure: [`classify::portions`] takes parsed mappings and a reader of memory. Everything that
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
pub mod portions;
mod proc_files;
pub mod purpose;
pub mod quick;
mod runtimes;
pub mod sockets;
pub mod stacks;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::ops::Range;

use unwind_tables::addr::Avma;

use self::cgroup::CgroupMemory;
use self::classify::Facts;
use self::contents::{Contents, ProcessContents, fill};
use self::descriptors::{Descriptors, Mapped};
use self::files::FileMemory;
use self::huge::{Effort, HugeSurplus};
use self::kind::{Kind, Kinds};
use self::mounts::Mounts;
use self::portions::Portion;
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

/// Mappings of a process by kind.
#[derive(Clone, Debug)]
pub struct Divided {
    /// All mappings, ascending.
    pub mappings: Vec<Resident>,
    /// The mappings in portions, each of one kind, ascending.
    pub portions: Vec<Portion>,
    /// Stacks that a C library has made for threads.
    pub stacks: Vec<ThreadStack>,
    mounts: Mounts,
}

impl Divided {
    /// Reads the mappings of process `pid`, which alone identifies it: call this only while it is known to
    /// run. Takes as long as the kernel needs for `smaps`, and a few milliseconds.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    pub fn read(pid: u32, known: &Known<'_>) -> io::Result<Self> {
        let mappings = smaps::parse(&read(pid, "smaps", MAX_SMAPS_BYTES)?);
        if mappings.is_empty() {
            // A process that has ended and was not waited for has no mappings, and no error either.
            return Err(io::ErrorKind::NotFound.into());
        }
        let mounts = Mounts::parse(&read(pid, "mountinfo", MAX_BYTES).unwrap_or_default());
        let contents = contents_of(pid);
        let contents = contents.as_ref();
        Ok(Self::of(mappings, known, contents, (mounts, usual_stack(pid))))
    }

    /// Divides `mappings`, which ascend. `usual` is the usual size of stacks.
    pub(crate) fn of(
        mappings: Vec<Resident>,
        known: &Known<'_>,
        contents: &dyn Contents,
        (mounts, usual): (Mounts, u64),
    ) -> Self {
        let fill = |address: u64, words: &mut [u64]| fill(contents, address, words);
        let entries = mappings.iter().map(|mapping| &mapping.entry);
        let stacks = stacks::find(&fill, entries, usual);
        let facts = Facts {
            contents,
            heaps: known.heaps,
            stack_pointers: known.stack_pointers,
            stacks: &stacks,
            mounts: &mounts,
        };
        let portions = classify::portions(&mappings, &facts);
        Self {
            mappings,
            portions,
            stacks,
            mounts,
        }
    }

    /// The mapping that a portion is of.
    pub fn mapping(&self, portion: &Portion) -> Option<&Resident> {
        self.mappings.get(portion.mapping)
    }
}

/// Memory of a process that its mappings do not show by themselves.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    pub huge: HugeSurplus,
    /// Open files; `None` if they may not be read.
    pub descriptors: Option<Descriptors>,
    pub sockets: Sockets,
    /// Memory of the process's control group; `None` if none counts it.
    pub cgroup: Option<CgroupMemory>,
}

impl Beside {
    /// Reads it. Takes up to 30 ms for huge pages, 5 µs for each open file, and time for each socket of the
    /// whole network namespace.
    pub fn read(pid: u32, divided: &Divided, effort: Effort) -> Self {
        let mapped = Mapped::of(&divided.mappings, &divided.portions);
        let descriptors = Descriptors::read(pid, &mapped, &divided.mounts).ok();
        let inodes = descriptors.as_ref().map(|found| &found.sockets);
        Self {
            huge: huge::surplus(contents_of(pid).as_ref(), &divided.mappings, (effort, SEED)),
            sockets: inodes.map_or_else(Sockets::default, |inodes| netlink::sockets(pid, inodes)),
            cgroup: CgroupMemory::read(pid),
            descriptors,
        }
    }
}

/// Size of the stacks that the C library makes in process `pid` if the program asks for none: the soft limit
/// in whole pages.
pub fn usual_stack(pid: u32) -> u64 {
    let limits = read(pid, "limits", MAX_BYTES).unwrap_or_default();
    let limit = quick::soft_limit(&limits, "Max stack size").unwrap_or(USUAL_STACK);
    limit
        .checked_next_multiple_of(memleak_base::pages::bytes())
        .unwrap_or(USUAL_STACK)
}

/// Memory of process `pid`; empty if it may not be read.
fn contents_of(pid: u32) -> Box<dyn Contents> {
    match ProcessContents::open(pid) {
        Ok(contents) => Box::new(contents),
        Err(_) => Box::new(Unreadable),
    }
}

/// Memory of a process at one moment.
#[derive(Clone, Debug)]
pub struct Census {
    /// Sums of the kernel. They are read before the mappings: a process that runs can differ a little.
    pub quick: Quick,
    /// All mappings, ascending.
    pub mappings: Vec<Resident>,
    /// The mappings in portions, each of one kind, ascending.
    pub portions: Vec<Portion>,
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
    /// Reads the memory of process `pid`, as [`Divided::read`] does.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    pub fn take(pid: u32, known: &Known<'_>) -> io::Result<Self> {
        let quick = Quick::read(pid)?;
        let divided = Divided::read(pid, known)?;
        let Beside {
            huge,
            descriptors,
            sockets,
            cgroup,
        } = Beside::read(pid, &divided, Effort::Full);
        let Divided {
            mappings,
            portions,
            stacks,
            mounts: _,
        } = divided;
        Ok(Self {
            quick,
            mappings,
            portions,
            stacks,
            huge,
            descriptors,
            sockets,
            cgroup,
        })
    }

    /// Memory by kind.
    pub fn by_kind(&self) -> Kinds {
        let mut kinds = Kinds::default();
        for portion in &self.portions {
            kinds.add(portion.kind, &portion.amounts);
        }
        kinds
    }

    /// Stacks of threads in one state.
    pub fn stacks_that(&self, state: ThreadState) -> StackSum {
        StackSum::of(&self.stacks, &self.mappings, state)
    }

    /// Mapped files with the most resident memory, descending, at most `count`.
    pub fn largest_files(&self, count: usize) -> Vec<FileMemory> {
        files::largest(&self.mappings, &self.portions, count)
    }

    /// Memory of no known purpose, portions with the most resident memory first.
    pub fn unexplained(&self) -> Vec<&Portion> {
        let portions = self.portions.iter();
        let mut unexplained: Vec<_> = portions
            .filter(|portion| portion.kind == Kind::Unexplained)
            .collect();
        unexplained.sort_by_key(|portion| std::cmp::Reverse(portion.amounts.resident));
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
