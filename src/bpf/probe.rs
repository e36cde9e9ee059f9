//! Probes: an instruction, the meaning of a hit, the processes that have it, and why it could not be
//! attached.

use std::path::PathBuf;

use thiserror::Error;
use unwind_tables::addr::FileOffset;

use super::attach_helper::Refusal;
use super::dynamic_events::DynamicEvents;
use super::settings::AttachPath;
use super::skeleton::types::{cookie_shift, role};

/// Position and meaning of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// File to probe, as the kernel can open it.
    pub path: PathBuf,
    /// File name for messages.
    pub file: String,
    /// Position of the instruction.
    pub offset: FileOffset,
    /// Function and meaning of its arguments.
    pub cookie: Cookie,
    /// Way to notice the end of a call.
    pub end: CallEnd,
    /// Function name for messages.
    pub name: String,
}

/// Ways to notice the end of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// None: a free counts when its function is entered.
    Unseen,
    /// A return probe.
    ReturnProbe,
    /// A probe on each of these instructions, all `ret`, for a function that can throw: an exception that
    /// meets a return probe ends the program.
    Rets(Vec<FileOffset>),
}

/// Effect of a probed function on blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProbeRole {
    /// Allocates a block.
    Allocate = role::ROLE_ALLOCATE.0,
    /// Reallocates a block, which stays if that fails.
    Resize = role::ROLE_RESIZE.0,
    /// Reallocates a block, which is freed even if that fails.
    ResizeOrFree = role::ROLE_RESIZE_OR_FREE.0,
    /// Changes the size of a block in place; returns the new size.
    ResizeInPlace = role::ROLE_RESIZE_IN_PLACE.0,
    /// Frees a block.
    Free = role::ROLE_FREE.0,
}

/// Function and argument positions, counted from 0, that a probe passes to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index into the caller's function table.
    pub function: u8,
    /// Number of the function's module.
    pub module: u32,
    pub role: ProbeRole,
    /// Argument with the requested size, one factor of it, or the address of a string that is copied.
    pub size: Option<u8>,
    /// True if the size is that of a copy of a string.
    pub copies_string: bool,
    /// Argument with the other factor, or with the maximum length of a copied string.
    pub count: Option<u8>,
    /// Argument with the block to resize or free.
    pub block: Option<u8>,
    /// Argument with the address to store the new block's address at, if it is not returned.
    pub result: Option<u8>,
    /// True if the function calls no other probed function of its module.
    pub leaf: bool,
    /// True if a call can end on another thread than it began on.
    pub moves: bool,
    /// True if its allocator also allocates its own records by this function.
    pub for_records: bool,
}

impl Cookie {
    /// Packs the fields as `enum cookie_shift` of `bpf/calls/cookie.h` defines; arguments are counted from 1
    /// there.
    pub(super) fn bits(self) -> u64 {
        let argument = |index: Option<u8>| index.map_or(0, |index| u64::from(index) + 1);
        [
            (cookie_shift::COOKIE_FUNCTION, self.function.into()),
            (cookie_shift::COOKIE_ROLE, u64::from(self.role as u32)),
            (cookie_shift::COOKIE_SIZE, argument(self.size)),
            (cookie_shift::COOKIE_STRING, self.copies_string.into()),
            (cookie_shift::COOKIE_COUNT, argument(self.count)),
            (cookie_shift::COOKIE_POINTER, argument(self.block)),
            (cookie_shift::COOKIE_RESULT, argument(self.result)),
            (cookie_shift::COOKIE_LEAF, self.leaf.into()),
            (cookie_shift::COOKIE_MOVES, self.moves.into()),
            (cookie_shift::COOKIE_FOR_RECORDS, self.for_records.into()),
            (cookie_shift::COOKIE_MODULE, self.module.into()),
        ]
        .into_iter()
        .fold(0, |bits, (shift, value)| bits | value << shift.0)
    }
}

#[derive(Debug, Error)]
#[error("cannot probe {names} in {file}{hint}")]
pub struct AttachError {
    pub names: String,
    pub file: String,
    /// Missing privilege and remedy, if known.
    pub hint: &'static str,
    pub source: Refusal,
}

impl AttachError {
    pub(super) fn new(path: AttachPath, names: &str, file: &str, source: Refusal) -> Self {
        Self {
            names: names.to_owned(),
            file: file.to_owned(),
            hint: hint(path, &source),
            source,
        }
    }
}

/// Missing privilege and remedy if `path` needs one that was denied, else empty.
fn hint(path: AttachPath, refusal: &Refusal) -> &'static str {
    // `perf_uprobe_event_init` of the kernel's kernel/events/core.c asks for it.
    if path == AttachPath::Perf && refusal.denied {
        " by perf events, which need CAP_SYS_ADMIN: run as root (sudo memleak …), or use Linux 6.6 or newer, which has other ways"
    } else {
        ""
    }
}

/// Processes that have a probe.
#[derive(Clone, Debug)]
pub enum ProbedIn<'a> {
    Process(u32),
    /// These processes, and those that they start from then on, by events that children inherit. For
    /// [`AttachPath::Perf`] only.
    Families(&'a DynamicEvents, Vec<u32>),
    /// All processes that have mapped the file.
    All,
}

impl ProbedIn<'_> {
    /// Process id as the kernel expects it: -1 for all processes. No process id exceeds `i32::MAX`.
    pub(super) fn pid(&self) -> i32 {
        match *self {
            Self::Process(pid) => i32::try_from(pid).unwrap_or(i32::MAX),
            Self::Families(..) | Self::All => -1,
        }
    }
}
