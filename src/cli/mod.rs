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
mod trace;
mod triggers;
mod verdict;
mod view;
mod why;

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};

pub use self::allocators::AllocatorArgs;
use crate::bpf::{AttachPath, Walk};
use crate::commands::{Format, doctor};
pub use config::{Config, ConfigError};
pub use debuginfod::DebuginfodArgs;
pub use dialects::DialectArgs;
pub use export::ExportArgs;
pub use fast_paths::{FastPathArgs, Switch};
pub use gate::{AnnotationsArg, GateArgs};
pub use kernel::KernelArgs;
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
pub use stray_pid::{StrayPid, StrayTime};
pub use targets::{AnyTargetArgs, OneTargetArgs, TargetArgs};
pub use top::TopArgs;
pub use triggers::TriggerArgs;
pub use verdict::VerdictArgs;
pub use view::ViewArgs;
pub use why::WhyArgs;

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
    const FORMS: [&str; 11] = [
        "memleak [OPTIONS] -p PID [INTERVAL] [COUNT]",
        "memleak [OPTIONS] -c COMMAND [INTERVAL] [COUNT]",
        "memleak [OPTIONS] [INTERVAL] [COUNT] -- PROGRAM [ARGUMENT…]",
        "memleak [OPTIONS] [INTERVAL] [COUNT]",
        "memleak live [OPTIONS] …",
        "memleak why [-p PID] [TIME]",
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
    /// Show the contents of the unwind tables of ELF files: rows, bytes, rules, gaps.
    Table {
        /// Compare every table with an independent evaluation of the file's CFI.
        ///
        /// Directories are searched. The exit status is 1 if any rule is wrong.
        #[arg(long)]
        verify: bool,
        /// ELF files; with --verify also directories.
        #[arg(required = true, value_name = "ELF")]
        files: Vec<PathBuf>,
    },
    /// Show reports recorded with --record: the last one, or others, in any format.
    Report(Box<ReportArgs>),
    /// Show which stacks grew between two recorded reports, and by how much.
    Diff(DiffArgs),
    /// Show how fast stacks grow, over all reports of a recording or over several recordings.
    Trend(TrendArgs),
    /// Trace, and show reports in an interactive view on the terminal (as --live, with the same flags).
    Live(Box<TraceArgs>),
    /// Show which processes grow, by their anonymous memory; nothing is traced until you choose one.
    ///
    /// On a terminal, Enter traces the selected process. The growth rate is the median of the slopes between
    /// all samples (Theil–Sen). It is shown only if it is certain to 99 % in spite of noise, single steps and
    /// random drift.
    Top(Box<TopArgs>),
    /// Tell whether the memory of a process grows, and why: leaks, caches, fragmentation, threads, mappings.
    ///
    /// Begins with what costs the process nothing, and traces only what the answer needs, within
    /// --max-overhead. The answer names causes in order, places in the program, and what to do next. If
    /// several processes match, or none is named, they are compared for a quarter of the time as `memleak
    /// top` does, and the answer is about the one that grows fastest.
    Why(Box<WhyArgs>),
    /// Find the lost blocks of a process, traced or not: those that it can no longer reach.
    ///
    /// Judges all blocks in the data structures of glibc's malloc, musl's, jemalloc, tcmalloc or mimalloc,
    /// but does not know their stacks. The process's memory is only read. `memleak --verdict` judges the
    /// blocks that a trace has seen, of any allocator, and shows who allocated them.
    Verdict(VerdictArgs),
    /// Answer questions about reports, for assistants and scripts, as a Model Context Protocol server.
    ///
    /// The server uses standard input and output. Its tools list, sum up and compare reports, and show the
    /// stacks of a site; every answer has at most 48 KiB of text. It reads only the files named here, or
    /// traces only the process named here.
    Mcp(McpArgs),
    /// Check whether a trace is possible, and how complete its stacks would be.
    ///
    /// Nothing is traced unless --measure is given.
    Doctor(DoctorArgs),
    /// Write libmemleak.so, which samples the allocations of a program that loads it (LD_PRELOAD=FILE).
    ///
    /// For services that can then be traced at any time: `memleak -p PID` traces the blocks that the library
    /// announces. Without a trace, it costs about 1 ns per allocation and its free, and no memory. Replaces
    /// an older libmemleak.so at FILE, but no other file.
    Library(LibraryArgs),
    /// Generate completions for a shell.
    Completions(CompletionsArgs),
    /// Generate the manual page, or all of them.
    Man(ManArgs),
}

/// Flags of `memleak library`.
#[derive(Debug, Args)]
pub struct LibraryArgs {
    /// Write the library to this file.
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
}

/// Flags of `memleak doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A process to look at, if any.
    #[command(flatten)]
    pub target: OneTargetArgs,
    /// Trace the process for two seconds, and print the cost of each way to trace it and a recommendation.
    #[arg(long)]
    pub measure: bool,
    /// Format of the findings.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: Format,
    /// Write a file to attach to an issue instead: the kernel, its settings, its answer to each BPF program.
    ///
    /// The file contains no names of your hosts, users, processes or files, and no process ids. Its default
    /// name is memleak-report.txt; - is standard output. Replaces an older such file, but no other.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "memleak-report.txt")]
    pub report: Option<PathBuf>,
    /// Break a BPF program, so that the kernel refuses it, for tests; several are separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', hide = true)]
    pub break_program: Vec<String>,
}

/// Flags and arguments of a trace.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Process to trace, by id or name; several are separated by commas, or -p is repeated.
    ///
    /// A name must be the complete name of the process or of its executable file; all processes that match
    /// are traced, and listed.
    #[arg(short = 'p', long = "pid", value_name = "PID|NAME", value_delimiter = ',')]
    pub pid: Vec<String>,
    /// Other properties by which processes are selected.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Trace the children of the processes (fork, vfork, posix_spawn), too, before and after exec.
    ///
    /// If tracefs cannot be used, or more than 256 processes are traced, probes are in all processes on the
    /// machine: each call of a function in the same files then takes the time of a trap. Such a probe kills
    /// programs that run under valgrind, rr, qemu-user and the like: if there are any, the trace is refused.
    #[arg(long)]
    pub follow_fork: bool,
    /// Trace even if probes kill programs that run under valgrind, rr, qemu-user and the like.
    ///
    /// These execute translated copies of their code, and a probe in all processes kills them. Probes are in
    /// all processes with --follow-fork or for more than 16 processes, and only if tracefs cannot be used or
    /// more than 256 processes are traced.
    #[arg(long)]
    pub ignore_translators: bool,
    /// Trace mappings (mmap, mremap, brk) instead of allocator functions.
    ///
    /// Each of these calls takes about 1 µs more; if the kernel does not allow tracing its functions, every
    /// system call on the machine takes about 80 ns more during the trace.
    #[arg(long, conflicts_with_all = ["sample_rate", "sample_bytes", "max_overhead", "min_size", "max_size", "older"])]
    pub mmap: bool,
    /// Trace page faults instead of allocator functions: shows which stacks make resident memory grow.
    ///
    /// Each private page of the process counts for the stack that touched it first, whatever allocated it. A
    /// fault takes about 1 µs more, in this process only; if the kernel does not allow tracing its functions,
    /// every system call on the machine takes about 80 ns more. -s N records one of N pages.
    #[arg(long, conflicts_with_all = [
        "mmap", "source", "sample_bytes", "max_overhead", "min_size", "max_size", "older", "objects", "prefixes", "functions",
    ])]
    pub faults: bool,
    /// Allocators to probe.
    #[command(flatten)]
    pub allocators: AllocatorArgs,
    /// Method of walking stacks.
    #[arg(long, value_enum, default_value = "dwarf", value_name = "METHOD")]
    pub unwind: Walk,
    /// Show Python functions between the native frames of the interpreter.
    ///
    /// Supports CPython 3.9 to 3.15 with glibc, as distributions ship it; nothing needs to be enabled in the
    /// process. Costs about 0.5 µs per allocation of a process that runs Python, more with deeper calls.
    #[arg(long, value_enum, default_value = "on", value_name = "on|off")]
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
    /// Stacks to show in text reports, and in JSON if given; JSON then has the sum of the others.
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
    /// Maximum number of outstanding blocks; further ones are counted as lost.
    ///
    /// [default: by the resident memory of the processes]
    #[arg(long, value_name = "N")]
    pub max_blocks: Option<u32>,
    /// Maximum number of distinct stacks; blocks of further ones are counted without their stack.
    ///
    /// [default: 65 thousand, or up to 131 thousand for processes with much code and with --follow-fork]
    #[arg(long, value_name = "N")]
    pub stack_storage_size: Option<u32>,
    /// Memory in the kernel for unwind tables, for example 32M; rounded down to a power of two.
    ///
    /// Tables that are no longer needed make room for others; if there is still no room, stacks end in the
    /// module with table_not_loaded.
    ///
    /// [default: as much as the processes need, with headroom, up to 256M]
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
    /// A number without a unit is refused if it is the id of a process that runs the same program as one of
    /// -p. So is the id of any process above 3600 that is not a whole number of minutes. To trace several
    /// processes, use -p A,B. With a unit, it is always an interval.
    ///
    /// [default: 5; 1 with --live, --report-when or a condition on growth]
    #[arg(value_name = "INTERVAL")]
    pub interval: Option<String>,
    /// Number of reports; without it, reports are made until interrupted.
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
