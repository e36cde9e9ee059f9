//! The command line: its description, and its conversion to validated settings.

mod allocators;
mod config;
mod debuginfod;
mod dialects;
mod examples;
mod export;
mod fast_paths;
mod gate;
mod help;
mod kernel;
mod live;
mod manual;
mod mcp;
mod messages;
mod names;
mod output;
mod program;
#[cfg(feature = "net")]
mod push;
mod quantity;
mod record;
#[cfg(test)]
mod reference;
mod replay;
mod selection;
pub mod settings;
mod stray_pid;
mod targets;
#[cfg(test)]
mod tests;
mod top;
mod triggers;
mod verdict;
mod view;

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};

pub use self::allocators::AllocatorArgs;
use crate::bpf::{AttachPath, Walk};
use crate::commands::replay::DEFAULT_TOP;
use crate::commands::{Format, doctor};
use crate::process::launch::Streams;
use crate::session::{SourceChoice, TraceConfig, View};
use crate::sinks::SinkConfig;
pub use config::{Config, ConfigError};
use config::{non_zero, parse_count, parse_period, parse_table_memory};
pub use debuginfod::DebuginfodArgs;
pub use dialects::DialectArgs;
pub use export::ExportArgs;
pub use fast_paths::{FastPathArgs, Switch};
pub use gate::{AnnotationsArg, GateArgs};
pub use kernel::KernelArgs;
use leak_report::model::{Measure, Order};
use leak_report::render::Reports;
pub use live::LiveArgs;
pub use manual::{CompletionsArgs, ManArgs, completions, man};
pub use mcp::{McpArgs, McpSource};
pub use messages::{ColorArg, MessageArgs};
pub use names::NameArgs;
pub use output::{OutputArgs, PlaceArgs};
pub use program::ProgramArgs;
pub use quantity::{DirectionArgs, QuantityArgs};
pub use record::RecordArgs;
pub use replay::{DiffArgs, DifferenceArg, ReportArgs, TrendArg, TrendArgs};
pub use selection::SelectionArgs;
pub use stray_pid::StrayPid;
pub use targets::{OneTargetArgs, TargetArgs};
pub use top::TopArgs;
use triggers::Subject;
pub use triggers::TriggerArgs;
pub use verdict::VerdictArgs;
pub use view::ViewArgs;

/// Find memory leaks in a running process, or in the kernel: shows the call stacks whose allocations were
/// never freed.
///
/// Stacks are walked in the kernel by the DWARF unwind information that distributions ship, so they are
/// complete through libraries and programs built without frame pointers.
#[derive(Debug, Parser)]
#[command(
    name = "memleak",
    version,
    args_conflicts_with_subcommands = true,
    infer_long_args = true,
    override_usage = usage()
)]
pub struct Cli {
    /// Subcommand; `None` for a trace.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags and arguments of a trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Flags about messages and settings files.
    #[command(flatten)]
    pub messages: MessageArgs,
}

/// Usage lines: the forms of the command line.
fn usage() -> String {
    const FORMS: [&str; 10] = [
        "memleak [OPTIONS] -p PID [INTERVAL] [COUNT]",
        "memleak [OPTIONS] -c COMMAND [INTERVAL] [COUNT]",
        "memleak [OPTIONS] [INTERVAL] [COUNT] -- PROGRAM [ARGUMENT…]",
        "memleak [OPTIONS] [INTERVAL] [COUNT]",
        "memleak live [OPTIONS] …",
        "memleak top [OPTIONS] [INTERVAL] [COUNT]",
        "memleak report|diff|trend FILE…",
        "memleak table ELF…",
        "memleak verdict -p PID",
        "memleak doctor [-p PID]",
    ];
    let forms: Vec<_> = FORMS.into_iter().filter(|form| help::is_built(form)).collect();
    forms.join("\n       ")
}

/// The command line as help and the manual show it.
fn command(page: help::Page) -> clap::Command {
    help::arrange(Cli::command(), page)
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the unwind tables of ELF files hold: rows, bytes, rules, gaps.
    Table {
        /// Compare every table with an independent evaluation of the file's CFI; directories are searched.
        /// Status 1 if any rule is wrong.
        #[arg(long)]
        verify: bool,
        /// ELF files; with --verify also directories.
        #[arg(required = true, value_name = "ELF")]
        files: Vec<PathBuf>,
    },
    /// Show what was recorded with --record: the last report, or others, in any format.
    Report(Box<ReportArgs>),
    /// Show which stacks grew between two recorded reports, and by how much.
    Diff(DiffArgs),
    /// Show how fast stacks grow, over all reports of a recording or over several recordings.
    Trend(TrendArgs),
    /// Trace, and show reports on the terminal to look around in: as --live, with the same flags.
    Live(Box<TraceArgs>),
    /// Show which processes grow, by the anonymous memory of all of them: nothing is traced until one is
    /// chosen.
    ///
    /// On a terminal, Enter traces the selected process. The rate of growth is the median of the slopes
    /// between all samples (Theil and Sen); it is told where it is certain by 99 %, in spite of noise, of
    /// single steps, and of what wanders.
    Top(Box<TopArgs>),
    /// Tell which blocks of a process, traced or not, nobody can reach any more: a verdict on all that it
    /// has, without stacks.
    ///
    /// Blocks are what glibc's malloc, musl's and jemalloc list in the process's memory, which is only read.
    /// With `--verdict`, a trace has verdicts on the blocks that it has seen, of any allocator, and says who
    /// allocated them.
    Verdict(VerdictArgs),
    /// Answer questions about reports, for assistants and scripts: a server of the Model Context Protocol on
    /// standard input and output.
    ///
    /// Its tools list reports, sum one up, show stacks of a site, and compare two; every answer has at most
    /// 48 KiB of text. It reads the files that are named here, or traces the process, and nothing else.
    Mcp(McpArgs),
    /// Check whether a trace is possible, and how complete its stacks would be.
    ///
    /// Nothing is traced.
    Doctor(DoctorArgs),
    /// Write libmemleak.so, with which a program samples its allocations: LD_PRELOAD=FILE, for services that
    /// are to be traced at any time.
    ///
    /// While nobody traces, it costs a program some 1 ns for each allocation and its free, and no memory;
    /// `memleak -p PID` then traces by what it announces. An older libmemleak.so at FILE is replaced, any
    /// other file is not.
    Library(LibraryArgs),
    /// Generate completions for a shell.
    Completions(CompletionsArgs),
    /// Generate the manual page, or all of them.
    Man(ManArgs),
}

/// Flags of `memleak library`.
#[derive(Debug, Args)]
pub struct LibraryArgs {
    /// Write it to this file.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Flags of `memleak doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A process to look at, if any.
    #[command(flatten)]
    pub target: OneTargetArgs,
    /// Trace the process for two seconds, and say what each way to trace it would cost, and which is
    /// recommended.
    #[arg(long)]
    pub measure: bool,
    /// Form of the findings.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: Format,
    /// Write a file to attach to an issue, instead: the kernel, its settings, and what it says to each BPF
    /// program. Without a name, memleak-report.txt.
    ///
    /// It has no names of hosts, users, processes or files of yours, and no process ids. An older one is
    /// replaced, any other file is not; - is standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "memleak-report.txt")]
    pub report: Option<PathBuf>,
    /// Break a BPF program, so that the kernel refuses it, for tests; several are separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide = true)]
    pub break_program: Vec<String>,
}

/// Flags and arguments of a trace.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Process to trace, by its id or its name; several are separated by commas, or -p is repeated.
    ///
    /// A name is that of the process, or of its executable's file, and not a part of it; all processes that
    /// have it are traced, and listed.
    #[arg(short = 'p', long = "pid", value_name = "PID|NAME", value_delimiter = ',')]
    pub pid: Vec<String>,
    /// Other properties by which processes are selected.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Trace their children (fork, vfork, posix_spawn), too, before and after exec.
    ///
    /// Every process on the machine that allocates by the same files then runs into the probes and takes the
    /// time of a trap for each call. Programs that valgrind, rr, qemu-user and the like run are ended by such
    /// a probe: where some run, the trace is refused.
    #[arg(long)]
    pub follow_fork: bool,
    /// Trace although there are processes, executed in translated copies of their code, that probes in all
    /// processes would end.
    ///
    /// Probes are in all processes with --follow-fork, and if more than 16 are traced, where tracefs cannot
    /// be used or more than 256 are traced.
    #[arg(long)]
    pub ignore_translators: bool,
    /// Trace mappings (mmap, mremap, brk) instead of allocator functions.
    ///
    /// Each of these calls takes about 1 µs more; where the kernel does not let its functions be traced,
    /// every system call on the machine takes some 80 ns more meanwhile.
    #[arg(long, conflicts_with_all = ["sample_rate", "sample_bytes", "max_overhead", "min_size", "max_size", "older"])]
    pub mmap: bool,
    /// Trace page faults instead of allocator functions: who grows the resident memory, whatever allocates
    /// it.
    ///
    /// Each page of memory that the process has of its own belongs to the stack that touched it first. A
    /// fault takes about 1 µs more, in this process only; where the kernel does not let its functions be
    /// traced, every system call on the machine takes some 80 ns more. -s N records one of N pages.
    #[arg(long, conflicts_with_all = [
        "mmap", "source", "sample_bytes", "max_overhead", "min_size", "max_size", "older", "objects", "prefixes", "functions",
    ])]
    pub faults: bool,
    /// Allocators to probe.
    #[command(flatten)]
    pub allocators: AllocatorArgs,
    /// How to walk stacks.
    #[arg(long, value_enum, default_value = "dwarf", value_name = "METHOD")]
    pub unwind: Walk,
    /// Put the functions of Python between the native frames of its interpreter.
    ///
    /// Of CPython 3.9 to 3.15 with glibc, as distributions ship it: nothing is switched on in the process. It
    /// takes some 0.5 µs for each allocation of a process that runs Python, and more the deeper its calls
    /// are.
    #[arg(long, value_enum, default_value = "on", value_name = "WHETHER")]
    pub python: Switch,
    /// Form and destination of reports.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Number that flame graphs show.
    #[command(flatten)]
    pub quantity: QuantityArgs,
    /// Direction of flame graphs.
    #[command(flatten)]
    pub direction: DirectionArgs,
    /// Recording of reports.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Export of reports.
    #[command(flatten)]
    pub export: ExportArgs,
    /// Conditions that the trace is checked against.
    #[command(flatten)]
    pub gate: GateArgs,
    /// Reports on the terminal.
    #[command(flatten)]
    pub live: LiveArgs,
    /// Stacks to show in a report in text, and in JSON if it is given, which then says what the others hold.
    ///
    /// [default: 10]
    #[arg(short = 'T', long, value_name = "N")]
    pub top: Option<usize>,
    /// Content of reports.
    #[command(flatten)]
    pub view: ViewArgs,
    /// Sources of names.
    #[command(flatten)]
    pub debuginfod: DebuginfodArgs,
    /// Selection of the allocations to record.
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Trace of the kernel's own allocations.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Blocks that can be live at once; more are counted as lost. Without it, as many as the processes' size
    /// suggests.
    #[arg(long, value_name = "N")]
    pub max_blocks: Option<u32>,
    /// Distinct stacks that can be stored; blocks of more are counted without their stack. Without it, 65
    /// thousand, or up to 131 thousand for processes with much code and with --follow-fork.
    #[arg(long, value_name = "N")]
    pub stack_storage_size: Option<u32>,
    /// Memory in the kernel for unwind tables, for example 32M; rounded down to a power of two.
    ///
    /// Without it, as much as the processes need, with headroom, up to 256M. Tables that no process needs any
    /// more make room for others; if there is none, stacks end in the module with table_not_loaded.
    #[arg(long, value_name = "SIZE")]
    pub table_memory: Option<String>,
    /// How to attach probes, instead of the best way that the kernel has.
    #[arg(long, value_enum, hide = true)]
    pub attach: Option<AttachPath>,
    /// Break a BPF program, so that the kernel refuses it, for tests; several are separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide = true)]
    pub break_program: Vec<String>,
    /// Fast paths.
    #[command(flatten)]
    pub fast_paths: FastPathArgs,
    /// Flags that users of bcc's memleak expect.
    #[command(flatten)]
    pub dialects: DialectArgs,
    /// Conditions on which the trace starts, and on which it makes reports.
    #[command(flatten)]
    pub triggers: TriggerArgs,
    /// Time between reports, in seconds or as in 500ms, 1m30s.
    ///
    /// A number without a unit that is the id of a process which runs the same program as one of -p is
    /// refused, as is that of any process above 3600 but for whole minutes: several processes are -p A,B.
    /// With a unit, it is an interval.
    ///
    /// [default: 5, or 1 with --live, with --report-when, and where growth is a condition]
    #[arg(value_name = "INTERVAL")]
    pub interval: Option<String>,
    /// Reports to make; without it, until interrupted.
    #[arg(value_name = "COUNT")]
    pub count: Option<String>,
    /// End after this time, with a last report; in seconds or as in 30s, 10m, 2h.
    #[arg(long, value_name = "TIME")]
    pub duration: Option<String>,
    /// Program to start and trace.
    #[command(flatten)]
    pub start: ProgramArgs,
}

impl TryFrom<DoctorArgs> for doctor::Options {
    type Error = ConfigError;

    fn try_from(args: DoctorArgs) -> Result<Self, ConfigError> {
        let process = args.target.check()?;
        if args.measure && process.is_none() {
            return Err(ConfigError::NoProcess("--measure"));
        }
        if args.report.is_some() && process.is_some() {
            return Err(ConfigError::ReportOfProcess);
        }
        let report = args.report.map(|path| match path == Path::new("-") {
            true => doctor::Destination::Standard,
            false => doctor::Destination::File(path),
        });
        Ok(Self {
            process,
            measure: args.measure,
            format: args.format,
            report,
            broken: args.break_program,
        })
    }
}

fn capacity(flag: &'static str, given: Option<u32>) -> Result<Option<u32>, ConfigError> {
    given.map(|given| non_zero(flag, given)).transpose()
}

impl TryFrom<TraceArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: TraceArgs) -> Result<Self, ConfigError> {
        let preload = args.start.preload;
        let program = args.start.words()?;
        let targets = args.targets.check(&args.pid)?;
        let has_targets = !targets.pids.is_empty() || targets.select.is_some();
        if has_targets && !program.is_empty() {
            return Err(ConfigError::TwoTargets);
        }
        let (format, mut destination) = args
            .output
            .check(args.record.record.is_some() || args.gate.writes())?;
        let quantity = args.quantity.check(format)?;
        destination.most_stacks = args.top;
        let recording = args.record.check_for_trace(&destination)?;
        let gate = args.gate.check(destination.overwrite)?;
        let calls = args.dialects.calls(format)?;
        let has_reports = calls.is_none_or(|calls| calls.reports != Reports::None);
        if let Some(condition) = gate.about_verdict().filter(|_| args.view.verdict.is_none()) {
            return Err(ConfigError::NoVerdict(condition.to_string()));
        }
        if quantity.measure == Measure::DefinitelyLost && args.view.verdict.is_none() {
            return Err(ConfigError::NotJudged);
        }
        if gate.is_enabled() && !has_reports {
            return Err(ConfigError::NoReports);
        }
        let live = args.live.check(&args.output, calls.is_some())?;
        let mut selected = args.selection.check()?;
        if preload {
            selected.preload(!program.is_empty())?;
        }
        let of_allocators = [
            ("--mmap", args.mmap),
            ("--faults", args.faults),
            ("-O", !args.allocators.objects.is_empty()),
            ("-S", !args.allocators.prefixes.is_empty()),
            ("--alloc", !args.allocators.functions.is_empty()),
        ];
        selected.check_source(of_allocators)?;
        let of_processes = [
            ("--follow-fork", args.follow_fork),
            ("--ignore-translators", args.ignore_translators),
            ("--table-memory", args.table_memory.is_some()),
            ("--source", selected.source != SourceChoice::Auto),
            ("--max-overhead", selected.max_overhead.is_some()),
            ("--debuginfod", args.debuginfod.debuginfod),
            ("--verdict", args.view.verdict.is_some()),
            ("--classes", args.view.classes),
        ];
        let of_processes = [&of_processes[..], &of_allocators].concat();
        let is_process = has_targets || !program.is_empty();
        let kernel = args.kernel.check(is_process, &of_processes)?;
        let interval = args.interval.as_deref().map_or_else(
            || {
                Ok(TraceConfig::default_interval(
                    gate.is_about_growth() || live.is_some() || args.triggers.reports(),
                ))
            },
            |text| parse_period("INTERVAL", text),
        )?;
        let subject = match (&kernel, &program[..]) {
            (Some(_), _) => Subject::Kernel,
            (None, []) => Subject::Processes,
            (None, [_, ..]) => Subject::Program,
        };
        let each = calls.is_none_or(|calls| calls.reports == Reports::Each);
        let other = [("--live", live.is_some()), ("-t", !each)].into_iter();
        let other = other
            .filter(|(_, is_given)| *is_given)
            .map(|(flag, _)| flag)
            .next();
        let triggers = args.triggers.check(subject, args.faults, other)?;
        let no_blocks = [("--mmap", args.mmap), ("--faults", args.faults)];
        let no_blocks = no_blocks.into_iter().find(|(_, is_given)| *is_given);
        let no_blocks = no_blocks.map(|(flag, _)| flag);
        let wants_peak = quantity.measure == Measure::Peak || args.view.sort == Some(Order::Peak);
        if wants_peak && (no_blocks.is_some() || kernel.is_some()) {
            return Err(ConfigError::NoPeak);
        }
        let trace = TraceConfig {
            fast_paths: (&args.fast_paths).into(),
            first_instructions: args.fast_paths.probe_first_instructions,
            pids: targets.pids,
            found: Vec::new(),
            members: targets.select.as_ref().map(|select| select.selectors.clone()),
            waits: targets.select.as_ref().is_some_and(|select| select.waits),
            start_when: triggers.start_when,
            report_when: triggers.report_when,
            program,
            kernel,
            preload,
            follow_fork: args.follow_fork,
            ignores_translators: args.ignore_translators,
            mmap: args.mmap,
            faults: args.faults,
            allocators: args.allocators.try_into()?,
            walk: args.unwind,
            python: args.python == Switch::On,
            interval,
            // The live view draws on the terminal.
            streams: match live {
                None => Streams::Inherited,
                Some(_) => Streams::InheritedWithoutTerminal,
            },
            top: args.top.unwrap_or(DEFAULT_TOP),
            view: View {
                quantity,
                direction: args.direction.check(format)?,
                ..args.view.check(format, no_blocks)?
            },
            calls,
            debuginfod: args.debuginfod.check()?,
            sampling: selected.sampling,
            source: selected.source,
            max_overhead: selected.max_overhead,
            sizes: selected.sizes,
            max_processes: targets.max_processes,
            max_blocks: capacity("--max-blocks", args.max_blocks)?,
            max_stacks: capacity("--stack-storage-size", args.stack_storage_size)?,
            table_memory: args.table_memory.as_deref().map(parse_table_memory).transpose()?,
            attach: args
                .attach
                .map_or_else(|| AttachPath::ALL.to_vec(), |way| vec![way]),
            broken: args.break_program,
            count: args.count.as_deref().map(parse_count).transpose()?,
            duration: args
                .duration
                .as_deref()
                .map(|text| parse_period("--duration", text))
                .transpose()?,
        };
        let sinks = SinkConfig {
            format,
            destination,
            recording,
            export: args.export.check(has_reports)?,
            gate,
            live,
        };
        Ok(Self {
            trace,
            select: targets.select,
            sinks,
        })
    }
}
