//! The command line as it is written, and what it means as settings.

mod allocators;
mod debuginfod;
mod dialects;
mod examples;
mod export;
mod gate;
mod help;
mod kernel;
mod live;
mod manual;
mod messages;
mod output;
mod program;
mod quantity;
mod record;
mod replay;
mod selection;
pub mod settings;
mod short_ways;
mod stray_pid;
mod view;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub use self::allocators::AllocatorArgs;
use crate::bpf::{AttachPath, Walk};
use crate::config::{
    Config, ConfigError, View, non_zero, parse_count, parse_interval, parse_pid, parse_pids,
    parse_table_memory,
};
use crate::doctor;
use crate::report::Reports;
pub use debuginfod::DebuginfodArgs;
pub use dialects::DialectArgs;
pub use export::{ApiArg, ExportArgs};
pub use gate::{AnnotationsArg, GateArgs};
pub use kernel::KernelArgs;
pub use live::LiveArgs;
pub use manual::{CompletionsArgs, ManArgs, completions, man};
pub use messages::{ColorArg, MessageArgs};
pub use output::{FormatArg, OutputArgs, PlaceArgs};
pub use program::ProgramArgs;
pub use quantity::{MeasureArg, QuantityArgs, UnitArg};
pub use record::RecordArgs;
pub use replay::{DiffArgs, DifferenceArg, ReportArgs, TrendArg, TrendArgs};
pub use selection::SelectionArgs;
pub use short_ways::{ShortWayArgs, Switch};
pub use stray_pid::StrayPid;
pub use view::{OrderArg, ViewArgs};

/// Says which call stacks of a process, or of the kernel, hold memory that was never freed.
///
/// Stacks are walked in the kernel by the DWARF unwind information that distributions ship, so they are
/// complete through libraries and programs built without frame pointers.
#[derive(Debug, Parser)]
#[command(
    name = "memleak",
    version,
    args_conflicts_with_subcommands = true,
    infer_long_args = true,
    override_usage = "memleak [OPTIONS] -p PID [INTERVAL] [COUNT]\n       \
        memleak [OPTIONS] -c COMMAND [INTERVAL] [COUNT]\n       \
        memleak [OPTIONS] [INTERVAL] [COUNT] -- PROGRAM [ARGUMENT…]\n       \
        memleak [OPTIONS] [INTERVAL] [COUNT]\n       memleak live [OPTIONS] …\n       memleak report|diff|trend FILE…\n       \
        memleak table ELF…\n       memleak doctor [-p PID]"
)]
pub struct Cli {
    /// What to do instead of tracing.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to trace.
    #[command(flatten)]
    pub trace: TraceArgs,
    /// What memleak says, and where its settings are.
    #[command(flatten)]
    pub messages: MessageArgs,
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
        /// Compare every table with an independent evaluation of the file's CFI; directories are searched. Status 1
        /// if any rule is wrong.
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
    /// Trace, and show reports on the terminal while they are made: the same as --live, with the same flags.
    Live(Box<TraceArgs>),
    /// Say what is in the way of a trace, and how complete its stacks would be.
    ///
    /// Nothing is traced.
    Doctor(DoctorArgs),
    /// Write a script that completes command lines in a shell.
    Completions(CompletionsArgs),
    /// Write the manual page, or all of them.
    Man(ManArgs),
}

/// Flags of `memleak doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A process to look at.
    #[arg(short = 'p', long = "pid", value_name = "PID")]
    pub pid: Option<String>,
    /// Form of the findings.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: FindingsArg,
}

/// Flags and arguments of a trace.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Process to trace; several are separated by commas, or given one by one.
    #[arg(short = 'p', long = "pid", value_name = "PID", value_delimiter = ',')]
    pub pid: Vec<String>,
    /// Trace the children that they make too, by fork, vfork or posix_spawn, before and after exec.
    ///
    /// Every process on the machine that allocates by the same files then runs into the probes and takes the time
    /// of a trap for each call.
    #[arg(long)]
    pub follow_fork: bool,
    /// Account mappings (mmap, mremap, brk) instead of the blocks of allocator functions.
    ///
    /// While it goes on, every system call on the machine takes some 50 ns more, and each of these calls some 300 ns.
    #[arg(long, conflicts_with_all = ["sample_rate", "sample_bytes", "max_overhead", "min_size", "max_size", "older"])]
    pub mmap: bool,
    /// Which allocators to probe.
    #[command(flatten)]
    pub allocators: AllocatorArgs,
    /// How to walk stacks.
    #[arg(long, value_enum, default_value = "dwarf", value_name = "METHOD")]
    pub unwind: UnwindArg,
    /// Form of the reports, and where they go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// What flame graphs show.
    #[command(flatten)]
    pub quantity: QuantityArgs,
    /// How they are recorded besides.
    #[command(flatten)]
    pub record: RecordArgs,
    /// How they are exported besides.
    #[command(flatten)]
    pub export: ExportArgs,
    /// What the trace is held against.
    #[command(flatten)]
    pub gate: GateArgs,
    /// Reports on the terminal.
    #[command(flatten)]
    pub live: LiveArgs,
    /// Stacks to show in a text report.
    #[arg(short = 'T', long, default_value_t = 10, value_name = "N")]
    pub top: usize,
    /// What reports show.
    #[command(flatten)]
    pub view: ViewArgs,
    /// Where names come from.
    #[command(flatten)]
    pub debuginfod: DebuginfodArgs,
    /// Which allocations are recorded.
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// How the kernel's own allocations are traced.
    #[command(flatten)]
    pub kernel: KernelArgs,
    /// Blocks that can be live at once; more are counted as lost. Without it, as many as the processes' size suggests.
    #[arg(long, value_name = "N")]
    pub max_blocks: Option<u32>,
    /// Distinct stacks that can be stored; blocks of more are counted without their stack. Without it, 65 thousand, or up to
    /// 131 thousand for processes with much code and with --follow-fork.
    #[arg(long, value_name = "N")]
    pub stack_storage_size: Option<u32>,
    /// Memory in the kernel for unwind tables, in bytes or with K, M, G; rounded down to a power of two.
    ///
    /// Without it, as much as the processes need, with headroom, up to 256M. Tables that no process needs any more
    /// make room for others; if there is none, stacks end in the module with table_not_loaded.
    #[arg(long, value_name = "BYTES")]
    pub table_memory: Option<String>,
    /// How to attach probes, instead of the best way that the kernel has.
    #[arg(long, value_enum, hide = true)]
    pub attach: Option<AttachArg>,
    /// What makes it fast.
    #[command(flatten)]
    pub short_ways: ShortWayArgs,
    /// What users of bcc's memleak expect besides.
    #[command(flatten)]
    pub dialects: DialectArgs,
    /// Seconds between reports.
    ///
    /// [default: 5, or 1 with --live and where growth is a condition]
    #[arg(value_name = "INTERVAL")]
    pub interval: Option<String>,
    /// Reports to make; without it, until interrupted.
    #[arg(value_name = "COUNT")]
    pub count: Option<String>,
    /// What to start instead.
    #[command(flatten)]
    pub start: ProgramArgs,
}

/// How to walk stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnwindArg {
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

/// Form of the findings of `memleak doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FindingsArg {
    /// For people.
    Text,
    /// One object.
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

impl From<AttachArg> for AttachPath {
    fn from(way: AttachArg) -> Self {
        match way {
            AttachArg::Session => Self::Session,
            AttachArg::Multi => Self::Multi,
            AttachArg::Perf => Self::Perf,
        }
    }
}

impl TryFrom<DoctorArgs> for doctor::Options {
    type Error = ConfigError;

    fn try_from(args: DoctorArgs) -> Result<Self, ConfigError> {
        Ok(Self {
            pid: args.pid.as_deref().map(parse_pid).transpose()?,
            format: match args.format {
                FindingsArg::Text => doctor::Format::Text,
                FindingsArg::Json => doctor::Format::Json,
            },
        })
    }
}

fn capacity(flag: &'static str, given: Option<u32>) -> Result<Option<u32>, ConfigError> {
    given.map(|given| non_zero(flag, given)).transpose()
}

impl TryFrom<TraceArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: TraceArgs) -> Result<Self, ConfigError> {
        let program = args.start.words()?;
        let pids = match (args.pid.is_empty(), program.is_empty()) {
            (false, false) => return Err(ConfigError::TwoTargets),
            (false, true) => parse_pids(&args.pid)?,
            (true, _) => Vec::new(),
        };
        let (format, destination) = args
            .output
            .check(args.record.record.is_some() || args.gate.writes())?;
        let quantity = args.quantity.check(format)?;
        let recording = args.record.check_for_trace(&destination)?;
        let gate = args.gate.check(destination.overwrite)?;
        let calls = args.dialects.calls(format)?;
        let has_reports = calls.is_none_or(|calls| calls.reports != Reports::None);
        if gate.is_anything() && !has_reports {
            return Err(ConfigError::NoReports);
        }
        let live = args.live.check(&args.output, calls.is_some())?;
        let selected = args.selection.check()?;
        let of_processes = [
            ("--follow-fork", args.follow_fork),
            ("--mmap", args.mmap),
            ("--table-memory", args.table_memory.is_some()),
            ("--max-overhead", selected.max_overhead.is_some()),
            ("-O", !args.allocators.objects.is_empty()),
            ("-S", !args.allocators.prefixes.is_empty()),
            ("--alloc", !args.allocators.functions.is_empty()),
            ("--debuginfod", args.debuginfod.debuginfod),
        ];
        let is_process = !pids.is_empty() || !program.is_empty();
        let kernel = args.kernel.check(is_process, &of_processes)?;
        Ok(Self {
            short_ways: (&args.short_ways).into(),
            first_instructions: args.short_ways.probe_first_instructions,
            pids,
            program,
            kernel,
            follow_fork: args.follow_fork,
            mmap: args.mmap,
            allocators: args.allocators.try_into()?,
            walk: match args.unwind {
                UnwindArg::Dwarf => Walk::Dwarf,
                UnwindArg::Fp => Walk::Fp,
                UnwindArg::Off => Walk::Off,
                UnwindArg::Kernel => Walk::Kernel,
            },
            format,
            destination,
            recording,
            export: args.export.check(has_reports)?,
            interval: args.interval.as_deref().map_or_else(
                || Ok(Config::usual_interval(gate.is_about_growth() || live.is_some())),
                parse_interval,
            )?,
            gate,
            live,
            top: args.top,
            view: View {
                quantity,
                ..args.view.check(format, args.mmap)?
            },
            calls,
            debuginfod: args.debuginfod.check()?,
            sampling: selected.sampling,
            max_overhead: selected.max_overhead,
            sizes: selected.sizes,
            max_blocks: capacity("--max-blocks", args.max_blocks)?,
            max_stacks: capacity("--stack-storage-size", args.stack_storage_size)?,
            table_memory: args.table_memory.as_deref().map(parse_table_memory).transpose()?,
            attach: args
                .attach
                .map_or_else(|| AttachPath::ALL.to_vec(), |way| vec![way.into()]),
            count: args.count.as_deref().map(parse_count).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::bpf::{Sampling, SizeFilter};
    use crate::config::MaxOverhead;

    fn config(arguments: &str) -> Result<Config, ConfigError> {
        let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
        Cli::try_parse_from(arguments)
            .expect("the command line parses")
            .trace
            .try_into()
    }

    /// The two positional arguments are seconds between reports and their number.
    #[test]
    fn interval_and_count_are_read() {
        let config = config("-p 17 0.25 3").expect("it makes sense");
        assert_eq!(config.interval, Duration::from_millis(250));
        assert_eq!(config.count, NonZeroU64::new(3));
        assert_eq!((config.walk, config.top), (Walk::Dwarf, 10));
        assert_eq!(config.pids, [17]);
    }

    /// Processes are given by commas, one by one, or both, and keep their order.
    #[test]
    fn several_processes() {
        for arguments in ["-p 3,1,2", "-p 3 -p 1 -p 2", "-p 3,1 --pid 2"] {
            assert_eq!(
                config(arguments).map(|config| config.pids),
                Ok(vec![3, 1, 2]),
                "{arguments}"
            );
        }
        let many = |count: u32| (1..=count).map(|pid| format!("-p {pid} ")).collect::<String>();
        assert!(config(&many(63)).is_ok());
        let too_many = ConfigError::TooManyPids { count: 64, most: 63 };
        assert_eq!(config(&many(64)), Err(too_many));
    }

    /// Without a process, the kernel's own allocations are traced; with one, they are not.
    #[test]
    fn no_process_is_the_kernel() {
        let kernel = |text: &str| config(text).map(|config| (config.kernel, config.pids));
        let traced = |percpu| Some(crate::config::KernelConfig { percpu });
        assert_eq!(kernel(""), Ok((traced(false), Vec::new())));
        assert_eq!(kernel("-P -F 3 2"), Ok((traced(true), Vec::new())));
        assert_eq!(kernel("--wa-missing-free -p 5"), Ok((None, vec![5])));
    }

    /// A program is given by one argument that is split, or by words that are taken as they are.
    #[test]
    fn programs() {
        let program = |arguments: &[&str]| {
            let arguments = std::iter::once("memleak").chain(arguments.iter().copied());
            let parsed = Cli::try_parse_from(arguments).expect("the command line parses");
            Config::try_from(parsed.trace).map(|config| (config.program, config.interval, config.pids))
        };
        let words = |words: &[&str]| words.iter().map(Into::into).collect::<Vec<_>>();
        let (second, five) = (Duration::from_secs(1), Duration::from_secs(5));
        for (arguments, expected, interval) in [
            (
                &["-c", "ls -l", "-T", "1", "1", "2"][..],
                &["ls", "-l"][..],
                second,
            ),
            (&["1", "2", "--", "ls", "-l", "a b"], &["ls", "-l", "a b"], second),
            (&["--", "-p", "--", "1"], &["-p", "--", "1"], five),
            (
                &["--command", r#" a  'b c' "d\"e" f\ g '' "#],
                &["a", "b c", "d\"e", "f g", ""],
                five,
            ),
            (&["-c", "echo $HOME *"], &["echo", "$HOME", "*"], five),
        ] {
            assert_eq!(
                program(arguments),
                Ok((words(expected), interval, vec![])),
                "{arguments:?}"
            );
        }
        for (command, error) in [
            ("", ConfigError::EmptyCommand),
            (" ", ConfigError::EmptyCommand),
            ("a \"b", ConfigError::CommandWords("a \"b".to_owned())),
            ("a\\", ConfigError::CommandWords("a\\".to_owned())),
        ] {
            assert_eq!(program(&["-c", command]), Err(error), "{command}");
        }
    }

    /// A limit on the overhead is a percentage; sampling then begins with all allocations, or as was asked for.
    #[test]
    fn max_overhead() {
        let of = |text: &str| {
            let config = config(&format!("-p 1 {text}")).expect("it makes sense");
            (config.sampling, config.max_overhead.map(MaxOverhead::share))
        };
        assert_eq!(of("--max-overhead 10"), (Sampling::Governed(1), Some(0.1)));
        assert_eq!(of("--max-overhead 0.5"), (Sampling::Governed(1), Some(0.005)));
        assert_eq!(
            of("--max-overhead 250 --sample-bytes 4K"),
            (Sampling::Governed(4096), Some(2.5))
        );
        assert_eq!(of("--sample-bytes 4K"), (Sampling::Bytes(4096), None));
    }

    /// Table memory is given in bytes or larger units.
    #[test]
    fn table_memory() {
        let of = |text: &str| config(&format!("-p 1 {text}")).map(|config| config.table_memory);
        for (text, bytes) in [
            ("65536", 65536),
            ("64K", 65536),
            ("3m", 3 << 20),
            ("256M", 256 << 20),
        ] {
            assert_eq!(of(&format!("--table-memory {text}")), Ok(Some(bytes)), "{text}");
        }
        assert_eq!(of(""), Ok(None));
    }

    /// Samples are of calls or of bytes; size limits are given singly or both.
    #[test]
    fn selection() {
        let of = |text: &str| config(&format!("-p 1 {text}")).map(|config| (config.sampling, config.sizes));
        let max = u64::MAX;
        for (text, sampling, sizes) in [
            ("", Sampling::All, None),
            ("-s 1", Sampling::All, None),
            ("-s 100", Sampling::Calls(100), None),
            ("--sample-bytes 512K", Sampling::Bytes(512 << 10), None),
            ("-z 64", Sampling::All, Some(SizeFilter { min: 64, max })),
            ("-Z 4K", Sampling::All, Some(SizeFilter { min: 0, max: 4096 })),
            (
                "-s 2 -z 8 -Z 8",
                Sampling::Calls(2),
                Some(SizeFilter { min: 8, max: 8 }),
            ),
        ] {
            assert_eq!(of(text), Ok((sampling, sizes)), "{text}");
        }
    }

    /// Every command line that makes no sense is refused with its own reason.
    #[test]
    fn nonsense_is_refused() {
        let bad = |text: &str| text.to_owned();
        for (arguments, error) in [
            ("-p 1 --percpu", ConfigError::KernelFlag("--percpu")),
            ("--follow-fork 1", ConfigError::ProcessFlag("--follow-fork")),
            ("-O libx.so", ConfigError::ProcessFlag("-O")),
            ("--debuginfod", ConfigError::ProcessFlag("--debuginfod")),
            ("-p 1 -- ls -l", ConfigError::TwoTargets),
            ("-p 1 -c ls", ConfigError::TwoTargets),
            ("-c ls -- ls", ConfigError::TwoPrograms),
            ("-c 'ls", ConfigError::CommandWords(bad("'ls"))),
            ("-p redis-server", ConfigError::NotAPid(bad("redis-server"))),
            ("-p 0", ConfigError::PidRange(0)),
            ("-p 1,", ConfigError::NotAPid(bad(""))),
            ("-p 5,7 -p 5", ConfigError::SamePid(5)),
            ("-p 4294967296", ConfigError::PidRange(1 << 32)),
            ("-p 2147483648", ConfigError::PidRange(1 << 31)),
            ("-p 1 0", ConfigError::Interval(bad("0"))),
            ("-p 1 nan", ConfigError::Interval(bad("nan"))),
            ("-p 1 1e99", ConfigError::Interval(bad("1e99"))),
            ("-p 1 5 0", ConfigError::Count(bad("0"))),
            ("-p 1 5 x", ConfigError::Count(bad("x"))),
            ("-p 1 --max-blocks 0", ConfigError::Zero("--max-blocks")),
            ("-p 1 -s 0", ConfigError::SampleRate(bad("0"))),
            ("-p 1 -s 10%", ConfigError::SampleRate(bad("10%"))),
            ("-p 1 -s 16777217", ConfigError::SampleRate(bad("16777217"))),
            ("-p 1 --sample-bytes 0", ConfigError::SampleBytes(bad("0"))),
            (
                "-p 1 --sample-bytes 2048G",
                ConfigError::SampleBytes(bad("2048G")),
            ),
            ("-p 1 --max-overhead 0", ConfigError::MaxOverhead(bad("0"))),
            ("-p 1 --max-overhead -5", ConfigError::MaxOverhead(bad("-5"))),
            ("-p 1 --max-overhead nan", ConfigError::MaxOverhead(bad("nan"))),
            (
                "-p 1 --max-overhead little",
                ConfigError::MaxOverhead(bad("little")),
            ),
            ("-p 1 --max-overhead 5 -s 2", ConfigError::OverheadByCalls),
            ("--max-overhead 5", ConfigError::ProcessFlag("--max-overhead")),
            ("-p 1 -z many", ConfigError::Size("-z", bad("many"))),
            ("-p 1 -Z -1", ConfigError::Size("-Z", bad("-1"))),
            ("-p 1 -z 9 -Z 8", ConfigError::NoSize { min: 9, max: 8 }),
            ("-p 1 --table-memory 63K", ConfigError::TableMemory(bad("63K"))),
            ("-p 1 --table-memory 1G", ConfigError::TableMemory(bad("1G"))),
            ("-p 1 --table-memory 1T", ConfigError::TableMemory(bad("1T"))),
            ("-p 1 --table-memory M", ConfigError::TableMemory(bad("M"))),
        ] {
            assert_eq!(config(arguments), Err(error), "{arguments}");
        }
    }
}
