//! What to trace: validated settings of a session. The command line's part is `cli`, and where reports go is `sinks`.

use std::ffi::OsString;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use leak_report::model::leak::Order;
use leak_report::model::{ListLimits, NameStyle, Quantity, Sampling};
use leak_report::render::{CallsTold, Reports};

use crate::allocator::Selection;
use crate::bpf::{AttachPath, FastPaths, SizeFilter, Walk};
use crate::process::launch::Streams;
use crate::symbolize::debuginfod::DebuginfodSettings;

/// What to trace and how; every value makes sense by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// The processes, each once; none when a program is started.
    pub pids: Vec<u32>,
    /// How the kernel's own allocations are traced, instead of processes.
    pub kernel: Option<KernelConfig>,
    /// The program to start and its arguments; nothing when processes are traced that run.
    pub program: Vec<OsString>,
    /// Whether their children are traced too.
    pub follow_fork: bool,
    /// Whether mappings are accounted, instead of what allocator functions allocate.
    pub mmap: bool,
    /// Which allocators are looked for, and where.
    pub allocators: Selection,
    /// How stacks are walked.
    pub walk: Walk,
    /// What makes walks faster; for benchmarks and tests.
    pub fast_paths: FastPaths,
    /// Whether probes are put on first instructions, whatever they cost; for benchmarks.
    pub first_instructions: bool,
    /// What a program that is started may do with the terminal.
    pub streams: Streams,
    /// Stacks in a text report.
    pub top: usize,
    /// What reports show of what was recorded.
    pub view: View,
    /// How calls are told one by one; without it, they are not.
    pub calls: Option<CallsTold>,
    /// Which servers are asked for debug files, if any.
    pub debuginfod: Option<DebuginfodSettings>,
    /// Which allocations are recorded.
    pub sampling: Sampling,
    /// What tracing may cost the target.
    pub max_overhead: Option<MaxOverhead>,
    /// Sizes of allocations that are recorded, if not all are.
    pub sizes: Option<SizeFilter>,
    /// Blocks that can be live at once; without it, as many as the processes' size suggests.
    pub max_blocks: Option<u32>,
    /// Distinct stacks that can be stored; without it, as many as the processes' code suggests.
    pub max_stacks: Option<u32>,
    /// Bytes of unwind tables in the kernel, all together; without it, what the processes need with headroom.
    pub table_memory: Option<u32>,
    /// Ways to attach, to be tried in this order.
    pub attach: Vec<AttachPath>,
    /// Time between reports.
    pub interval: Duration,
    /// Reports to make, or as many as there is time for.
    pub count: Option<NonZeroU64>,
    /// How long to trace, or until something else ends it.
    pub duration: Option<Duration>,
}

/// A limit on what tracing costs, above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxOverhead {
    thousandths: u32,
}

impl MaxOverhead {
    /// A limit in thousandths of a percent of one CPU.
    pub(crate) const fn from_thousandths(thousandths: u32) -> Self {
        Self { thousandths }
    }

    /// As a share of one CPU.
    pub fn share(self) -> f64 {
        f64::from(self.thousandths) / 100_000.0
    }
}

/// How the kernel's own allocations are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// Whether those of the per-CPU allocator are, too.
    pub percpu: bool,
}

/// What reports show of what was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Blocks younger than this are hidden from people. Without it, ages are not looked at.
    pub older: Option<Duration>,
    /// What stacks are ranked by.
    pub sort: Option<Order>,
    /// What is shown of a stack where there is one number for each.
    pub quantity: Quantity,
    /// Frames of a stack, the innermost; without it, all.
    pub depth: Option<NonZeroUsize>,
    /// How many blocks are listed; without it, none are.
    pub list: Option<ListLimits>,
    /// How names are written for people.
    pub names: NameStyle,
}

impl Default for View {
    fn default() -> Self {
        Self {
            older: Some(Duration::from_millis(500)),
            sort: None,
            quantity: Quantity::default(),
            depth: None,
            list: None,
            names: NameStyle::default(),
        }
    }
}

impl TraceConfig {
    /// A trace of process `pid` of which nothing else is asked: all allocations, one report each second.
    pub fn of_process(pid: u32) -> Self {
        Self {
            pids: vec![pid],
            kernel: None,
            program: Vec::new(),
            follow_fork: false,
            mmap: false,
            allocators: Selection::default(),
            walk: Walk::Dwarf,
            fast_paths: FastPaths::default(),
            first_instructions: false,
            streams: Streams::Ours,
            top: 0,
            view: View::default(),
            calls: None,
            debuginfod: None,
            sampling: Sampling::All,
            max_overhead: None,
            sizes: None,
            max_blocks: None,
            max_stacks: None,
            table_memory: None,
            attach: AttachPath::ALL.to_vec(),
            interval: Duration::from_secs(1),
            count: None,
            duration: None,
        }
    }

    /// Whether a report is made after an interval; `last`: none will follow.
    pub fn is_report_due(&self, last: bool) -> bool {
        match self.calls.map_or(Reports::Each, |calls| calls.reports) {
            Reports::Each => true,
            Reports::Last => last,
            Reports::None => false,
        }
    }

    /// The time between reports, if nothing is said: growth shows only after some of them, and who watches does not wait.
    pub(crate) const fn default_interval(is_often: bool) -> Duration {
        match is_often {
            true => Duration::from_secs(1),
            false => Duration::from_secs(5),
        }
    }

    /// Maximal bytes of unwind tables in the kernel, and what is taken at most without `--table-memory`.
    pub const MAX_TABLE_MEMORY: u32 = 256 << 20;
    /// Minimal bytes of unwind tables that can be asked for.
    pub const MIN_TABLE_MEMORY: u32 = 64 << 10;
}
