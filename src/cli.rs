//! The command line as it is written. What it means, and whether it makes sense, is `config`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Says which call stacks of a running process hold memory that was never freed.
///
/// Stacks are walked in the kernel by the DWARF unwind information that distributions ship, so they are
/// complete through libraries and programs built without frame pointers.
#[derive(Debug, Parser)]
#[command(
    name = "memleak",
    version,
    args_conflicts_with_subcommands = true,
    override_usage = "memleak [OPTIONS] -p PID [INTERVAL] [COUNT]\n       memleak table ELF…",
    after_help = "Examples:\n  \
        memleak -p 4711              report every 5 seconds until Ctrl-C\n  \
        memleak -p 4711 10 3         report three times, 10 seconds apart\n  \
        memleak --format json -p 4711 60 1 > leaks.json\n  \
        memleak table /usr/lib/x86_64-linux-gnu/libstdc++.so.6\n\n\
        Exit status: 0 done, 2 wrong usage or an error."
)]
pub struct Cli {
    /// What to do instead of tracing.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the unwind tables of ELF files hold: rows, bytes, rules, gaps.
    Table {
        /// ELF files.
        #[arg(required = true, value_name = "ELF")]
        files: Vec<PathBuf>,
    },
}

/// Flags and arguments of a trace.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Process to trace.
    #[arg(short = 'p', long = "pid", value_name = "PID")]
    pub pid: Option<String>,
    /// How to walk stacks.
    #[arg(long, value_enum, default_value = "dwarf", value_name = "METHOD")]
    pub unwind: UnwindArg,
    /// Form of the reports.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: FormatArg,
    /// Stacks to show in a text report.
    #[arg(short = 'T', long, default_value_t = 10, value_name = "N")]
    pub top: usize,
    /// Blocks that can be live at once; more are counted as lost.
    #[arg(long, default_value_t = 1 << 20, value_name = "N")]
    pub max_blocks: u32,
    /// Distinct stacks that can be stored; blocks of more are counted without their stack.
    #[arg(long, default_value_t = 1 << 16, value_name = "N")]
    pub stack_storage_size: u32,
    /// Say more about what is done, on standard error; twice for everything.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// How to attach probes, instead of the best way that the kernel has.
    #[arg(long, value_enum, hide = true)]
    pub attach: Option<AttachArg>,
    /// Seconds between reports.
    #[arg(value_name = "INTERVAL", default_value = "5")]
    pub interval: String,
    /// Reports to make; without it, until interrupted.
    #[arg(value_name = "COUNT")]
    pub count: Option<String>,
    /// A program to start and trace.
    #[arg(last = true, hide = true)]
    pub program: Vec<OsString>,
}

/// How to walk stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnwindArg {
    /// By DWARF unwind tables; by frame pointer where there are none.
    Dwarf,
    /// By frame pointers only.
    Fp,
    /// Not at all.
    #[value(hide = true)]
    Off,
}

/// Form of the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For people.
    Text,
    /// One object per line.
    Json,
}

/// How to attach probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AttachArg {
    /// Session probes.
    Session,
    /// Multi-probe links.
    Multi,
    /// A perf event per probe.
    Perf,
}
