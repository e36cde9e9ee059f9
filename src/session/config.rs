//! Validated settings of a session: what to trace and how. `cli` has the command line's part, and `sinks`
//! where reports go.

use std::ffi::OsString;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use leak_report::model::leak::Order;
use leak_report::model::{Direction, ListLimits, NameStyle, Quantity, Sampling};
use leak_report::render::{CallFormat, Reports};

use super::triggers::{ReportCondition, StartCondition};
use crate::allocator::Selection;
use crate::bpf::{AttachPath, Capacity, FastPaths, SizeFilter, Takes, Walk};
use crate::process::launch::Streams;
use crate::process::select::{Found, Selectors};
use crate::reach::tags::Tags;
use crate::symbolize::debuginfod::DebuginfodSettings;

/// Factor from the processes at the start to those that can be traced at once, if others can come.
const ROOM_PER_PROCESS: u32 = 4;

/// Settings of a trace; each value is valid by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    pub targets: TargetConfig,
    pub count: CountConfig,
    pub stacks: StackConfig,
    pub limits: LimitConfig,
    pub schedule: ScheduleConfig,
    pub shown: ShownConfig,
    pub tuning: TuningConfig,
}

/// Processes, or the program, to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetConfig {
    /// Processes to trace, each once; none if a program is started.
    pub pids: Vec<u32>,
    /// Processes to trace that were found by their properties, each once. Those that cannot be traced are
    /// left out.
    pub found: Vec<Found>,
    /// Selectors of these processes. Processes that match later are traced, too; those that no longer match
    /// are not.
    pub members: Option<Selectors>,
    /// True if `start_when` keeps waiting for processes to select after all have ended (`--wait`).
    pub waits: bool,
    /// Program to start and its arguments; empty if running processes are traced.
    pub program: Vec<OsString>,
    /// True if the program is started with the library that makes it sample its own allocations.
    pub preload: bool,
    /// Access of a started program to the terminal.
    pub streams: Streams,
    /// True if child processes are traced too.
    pub follow_fork: bool,
    /// True if probes may be in all processes even if they kill some that are executed in translated copies.
    pub ignores_translators: bool,
}

/// Kind of memory that is counted, and the selection of it that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountConfig {
    /// Kind of memory that is counted.
    pub counted: Counted,
    /// Allocators to probe, and the files to search for them.
    pub allocators: Selection,
    /// Source of what memleak knows of blocks.
    pub source: SourceChoice,
    /// Selection of the allocations that are recorded.
    pub sampling: Sampling,
    /// Limit on the cost of tracing.
    pub max_overhead: Option<MaxOverhead>,
    /// Sizes of the allocations that are recorded; `None` for all.
    pub sizes: Option<SizeFilter>,
}

/// How stacks are found and their frames named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// How stacks are walked.
    pub walk: Walk,
    /// True if the functions of Python are put into stacks.
    pub python: bool,
    /// Servers to ask for debug files, if any.
    pub debuginfod: Option<DebuginfodSettings>,
}

/// Capacities of the kernel side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitConfig {
    /// Maximum number of processes that are traced at once; by default some more than at the start, if others
    /// can come.
    pub processes: Option<u32>,
    /// Maximum number of outstanding blocks; by default derived from the processes' resident memory.
    pub blocks: Option<u32>,
    /// Maximum number of distinct stacks; by default derived from the size of the processes' code.
    pub stacks: Option<u32>,
    /// Maximum total bytes of unwind tables in the kernel; by default what the processes need, with headroom.
    pub table_memory: Option<u32>,
}

/// When a trace begins, reports and ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleConfig {
    /// Conditions, one of which must be true before anything is attached.
    pub start_when: Vec<StartCondition>,
    /// Time between reports, and between looks at conditions.
    pub interval: Duration,
    /// Conditions that are checked each `interval`; a report is made whenever one becomes true. Without any,
    /// there is a report each `interval`.
    pub report_when: Vec<ReportCondition>,
    /// Number of reports to make; unlimited without it.
    pub count: Option<NonZeroU64>,
    /// Time to trace; unlimited without it.
    pub duration: Option<Duration>,
}

/// Content and form of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownConfig {
    /// Maximum number of stacks in a text report.
    pub top: usize,
    /// Part of the recorded data that reports show.
    pub view: View,
    /// Form in which calls are traced one by one; `None` if they are not.
    pub calls: Option<CallFormat>,
}

/// Ways to attach, and what benchmarks and tests change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningConfig {
    /// Ways to attach, in the order in which they are tried.
    pub attach: Vec<AttachPath>,
    /// Fast paths that are on; for benchmarks and tests.
    pub fast_paths: FastPaths,
    /// Puts probes on first instructions, whatever they cost; for benchmarks.
    pub first_instructions: bool,
    /// Names of BPF programs that are broken, for tests.
    pub broken: Vec<String>,
}

/// Kinds of memory that a trace can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Blocks of allocators.
    Blocks,
    /// Mappings (`--mmap`).
    Mappings,
    /// Pages, by page faults (`--faults`).
    Pages,
    /// Whatever a process takes from the kernel, without what it gives back (`memleak why`).
    Takes(Takes),
    /// The kernel's own allocations, instead of those of processes.
    Kernel(KernelConfig),
}

impl Counted {
    /// True if what is counted are blocks of processes: functions of allocators are probed, or their USDT
    /// probes.
    pub fn is_blocks(self) -> bool {
        self == Self::Blocks
    }

    /// Flag that asks for it; `None` if none is needed.
    pub(super) fn flag(self) -> Option<&'static str> {
        match self {
            Self::Mappings => Some("--mmap"),
            Self::Pages => Some("--faults"),
            Self::Blocks | Self::Takes(_) | Self::Kernel(_) => None,
        }
    }
}

/// Source of what memleak knows of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SourceChoice {
    /// `usdt` if all processes announce what they allocate, else `uprobe`.
    #[default]
    Auto,
    /// USDT probes of processes that sample their allocations (otel_memory).
    Usdt,
    /// Probes in the functions of allocators: every call.
    Uprobe,
}

/// Limit on the cost of tracing, above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxOverhead {
    thousandths: u32,
}

impl MaxOverhead {
    /// A limit in thousandths of a percent of one CPU.
    pub(crate) const fn from_thousandths(thousandths: u32) -> Self {
        Self { thousandths }
    }

    /// Limit as a share of one CPU (1.0 is all of it).
    pub fn share(self) -> f64 {
        f64::from(self.thousandths) / 100_000.0
    }
}

/// Options for tracing the kernel's own allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// True if the per-CPU allocator is traced too.
    pub percpu: bool,
}

/// Part of the recorded data that reports show, and its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Age below which blocks are hidden in formats for people. Without it, ages are not read.
    pub older: Option<Duration>,
    /// Order in which stacks are ranked.
    pub sort: Option<Order>,
    /// Quantity shown in formats with one number per stack.
    pub quantity: Quantity,
    /// Direction of flame graphs.
    pub direction: Direction,
    /// Maximum frames of a stack, from the innermost; without it, all.
    pub depth: Option<NonZeroUsize>,
    /// How verdicts on blocks are made; without it, none are.
    pub verdict: Option<VerdictSettings>,
    /// True if the classes of blocks are looked for without a verdict, too.
    pub classes: bool,
    /// True if the free memory that blocks pin is looked for.
    pub pinned: bool,
    /// Limits on the list of single blocks; without it, none are listed.
    pub list: Option<ListLimits>,
    /// Form of names in formats for people.
    pub names: NameStyle,
}

/// How verdicts on blocks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictSettings {
    /// True if each report has one, not only the last.
    pub each: bool,
    /// True if the running threads of a process are stopped while its memory is copied.
    pub stops: bool,
    /// Time after which no further pass begins.
    pub limit: Duration,
    /// Tags that pointers can have.
    pub tags: Tags,
}

impl Default for VerdictSettings {
    fn default() -> Self {
        Self {
            each: false,
            stops: false,
            limit: Duration::from_secs(60),
            tags: Tags::default(),
        }
    }
}

impl Default for View {
    fn default() -> Self {
        Self {
            older: Some(Duration::from_millis(500)),
            sort: None,
            quantity: Quantity::default(),
            direction: Direction::default(),
            depth: None,
            verdict: None,
            classes: false,
            pinned: false,
            list: None,
            names: NameStyle::default(),
        }
    }
}

impl TraceConfig {
    /// Traces process `pid` with defaults: all allocations, one report per second.
    pub fn of_process(pid: u32) -> Self {
        Self {
            targets: TargetConfig {
                pids: vec![pid],
                found: Vec::new(),
                members: None,
                waits: false,
                program: Vec::new(),
                preload: false,
                streams: Streams::Inherited,
                follow_fork: false,
                ignores_translators: false,
            },
            count: CountConfig {
                counted: Counted::Blocks,
                allocators: Selection::default(),
                source: SourceChoice::Uprobe,
                sampling: Sampling::All,
                max_overhead: None,
                sizes: None,
            },
            stacks: StackConfig {
                walk: Walk::Dwarf,
                python: true,
                debuginfod: None,
            },
            limits: LimitConfig {
                processes: None,
                blocks: None,
                stacks: None,
                table_memory: None,
            },
            schedule: ScheduleConfig {
                start_when: Vec::new(),
                interval: Duration::from_secs(1),
                report_when: Vec::new(),
                count: None,
                duration: None,
            },
            shown: ShownConfig {
                top: 0,
                view: View::default(),
                calls: None,
            },
            tuning: TuningConfig {
                attach: AttachPath::ALL.to_vec(),
                fast_paths: FastPaths::default(),
                first_instructions: false,
                broken: Vec::new(),
            },
        }
    }

    /// Number of processes that can be traced at once if `count` are at the start.
    pub(super) fn room_for_processes(&self, count: usize) -> u32 {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let usual = match self.targets.follow_fork || self.targets.members.is_some() {
            true => count
                .saturating_mul(ROOM_PER_PROCESS)
                .max(Capacity::FEW_PROCESSES),
            false => count,
        };
        let room = self.limits.processes.unwrap_or(usual).max(count);
        room.min(Capacity::MAX_PROCESSES)
    }

    /// Returns whether a report is made after an interval. `last`: no other follows.
    pub fn is_report_due(&self, last: bool) -> bool {
        match self.shown.calls.map_or(Reports::Each, |calls| calls.reports) {
            Reports::Each => true,
            Reports::Last => last,
            Reports::None => false,
        }
    }

    /// Default time between reports: 1 s if `is_often`, for someone who watches; else 5 s, as growth shows
    /// only after several.
    pub(crate) const fn default_interval(is_often: bool) -> Duration {
        match is_often {
            true => Duration::from_secs(1),
            false => Duration::from_secs(5),
        }
    }

    /// Maximum bytes of unwind tables in the kernel, with `--table-memory` and without.
    pub const MAX_TABLE_MEMORY: u32 = 256 << 20;
    /// Minimum bytes of unwind tables that `--table-memory` accepts.
    pub const MIN_TABLE_MEMORY: u32 = 64 << 10;
}
