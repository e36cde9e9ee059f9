//! Settings of the kernel side.

use leak_report::model::{CallTrace, Sampling};

use super::call_hooks::CallHooks;
use super::skeleton::types::limits;

/// How stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Walk {
    /// By DWARF unwind tables; by frame pointer where there are none.
    Dwarf,
    /// By frame pointers only.
    Fp,
    /// Not at all; for benchmarks.
    #[value(hide = true)]
    Off,
    /// As the kernel does; for benchmarks.
    #[value(hide = true)]
    Kernel,
}

/// Optimisations that do not change the result of a walk. All are on except in benchmarks and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPaths {
    /// Caches rules by address.
    pub cache: bool,
    /// Reads the stack in large pieces.
    pub window: bool,
    /// Reuses a walk that started with the same registers.
    pub memo: bool,
    /// Repeats each walk without the fast paths and counts differences.
    pub checked: bool,
}

impl Default for FastPaths {
    fn default() -> Self {
        Self {
            cache: true,
            window: true,
            memo: true,
            checked: false,
        }
    }
}

/// How probes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AttachPath {
    /// Session probes.
    Session,
    /// Multi-probe links.
    Multi,
    /// A perf event per probe.
    Perf,
}

impl AttachPath {
    /// All paths, the cheapest first.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Perf];
}

/// Capacities of the kernel side. Excess is counted as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Words of unwind tables; rounded up to a power of two.
    pub table_words: u32,
    /// Executable mappings of one process; rounded up to a power of two.
    pub mappings: u32,
    /// Processes traced at once, at most [`Capacity::MAX_PROCESSES`].
    pub processes: u32,
    /// Distinct stacks.
    pub stacks: u32,
    /// Stand-ins: blocks of deferred walks that can be outstanding at once; at least 1.
    pub stand_ins: u32,
    /// Blocks live at once.
    pub blocks: u32,
}

impl Capacity {
    /// Maximum number of processes traced at once.
    pub const MAX_PROCESSES: u32 = limits::MAX_PROCESSES.0 - 1;
    /// Number of processes up to which each has room for many mappings.
    pub const FEW_PROCESSES: u32 = 63;
    /// Stack records with fixed meanings. A capacity of a power of two minus these wastes no memory.
    pub const FIXED_STACKS: u32 = limits::FIRST_STACK.0;
}

/// Sizes of allocations that are recorded, both bounds included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeFilter {
    pub min: u64,
    pub max: u64,
}

/// Settings for page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSettings {
    /// Index of page faults in the caller's function table.
    pub function: u8,
    /// Random number that the choice of pages depends on.
    pub seed: u64,
    pub takes: Takes,
}

/// Ways of taking memory that neither mapping calls nor page faults show, to be followed beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Descriptors that a process gets.
    pub descriptors: bool,
    /// Data written to files in memory.
    pub writes: bool,
}

/// Everything that is fixed when the object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub walk: Walk,
    /// Fast paths that are on.
    pub fast_paths: FastPaths,
    /// Way to attach probes.
    pub attach: AttachPath,
    /// Traces the children of traced processes, too.
    pub follow_fork: bool,
    /// Reports processes that may belong to the selected ones now, or no longer.
    pub follow_members: bool,
    /// Hooks by which mapping calls are traced; `None` if they are not.
    pub regions: Option<CallHooks>,
    /// Hooks by which mapping calls are followed for notes of freed memory; `None` if none are made. Not with
    /// [`Settings::regions`], and only if every block is recorded.
    pub frees: Option<CallHooks>,
    /// Traces page faults; needs [`Settings::regions`].
    pub faults: Option<FaultSettings>,
    /// Sizes that are recorded; `None` for all.
    pub sizes: Option<SizeFilter>,
    /// Sampling among allocations of these sizes.
    pub sampling: Sampling,
    /// Traces what processes announce by USDT probes instead of calls of allocators.
    pub announced: bool,
    /// True if calls can end on another thread than they began on.
    pub calls_move: bool,
    /// Stops a process that executes a program that may translate code; see
    /// [`continue_stopped`](super::continue_stopped).
    pub stops_translated: bool,
    /// True if probes can share events.
    pub shares_events: bool,
    /// Reads the frames of Python, where there are some.
    pub python: bool,
    /// Calls that are reported one by one.
    pub calls: CallTrace,
    /// Process that memleak has started: stopped when it executes another program.
    pub started: Option<u32>,
    /// Stops that process before it ends, too.
    pub holds_end: bool,
    pub capacity: Capacity,
}
