//! Validated settings: whatever exists makes sense. How they are written on the command line is `cli`.

use std::ffi::{OsStr, OsString};
use std::num::{NonZeroU64, NonZeroUsize};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use thiserror::Error;

use crate::allocator::Selection;
use crate::allocator::given::GivenError;
use crate::bpf::{AttachPath, Capacity, ShortWays, SizeFilter, Walk};
use crate::export;
use crate::gate::{self, SettingsError};
use crate::output::Destination;
use crate::recording;
use crate::symbolize::debuginfod::DebuginfodSettings;
use leak_report::model::ListLimits;
use leak_report::model::Quantity;
use leak_report::model::leak::Order;
use leak_report::model::{NameStyle, Sampling};
use leak_report::render::{CallsTold, Format, Reports};
use leak_report::units::{self, TimeUnit, UnitError};

/// A trace that can be attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
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
    pub short_ways: ShortWays,
    /// Whether probes are put on first instructions, whatever they cost; for benchmarks.
    pub first_instructions: bool,
    /// Form of the reports.
    pub format: Format,
    /// Where they go.
    pub destination: Destination,
    /// How they are recorded besides.
    pub recording: Option<recording::Settings>,
    /// How they are exported besides.
    pub export: export::Settings,
    /// What the trace is held against.
    pub gate: gate::Settings,
    /// Whether and how reports are shown on the terminal while they are made.
    pub live: Option<LiveConfig>,
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
    /// In thousandths of a percent of one CPU.
    thousandths: u32,
}

impl MaxOverhead {
    /// As a share of one CPU.
    pub fn share(self) -> f64 {
        f64::from(self.thousandths) / 100_000.0
    }
}

/// How reports are shown on the terminal while they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// Whether the last report is written when the view is left.
    pub keeps_report: bool,
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

impl Config {
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
            short_ways: ShortWays::default(),
            first_instructions: false,
            format: Format::Text,
            destination: Destination::default(),
            recording: None,
            export: export::Settings::default(),
            gate: gate::Settings::default(),
            live: None,
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
    pub(crate) const fn usual_interval(is_often: bool) -> Duration {
        match is_often {
            true => Duration::from_secs(1),
            false => Duration::from_secs(5),
        }
    }

    /// The most bytes of unwind tables in the kernel; also the most that are taken without being asked for.
    pub const MOST_TABLE_MEMORY: u32 = 256 << 20;
    /// The least that can be asked for.
    pub const LEAST_TABLE_MEMORY: u32 = 64 << 10;
}

/// The command line does not say what can be done.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A flag about the kernel's allocations, with a process.
    #[error("{0} applies to the kernel's own allocations, which are traced without -p: use only one of them")]
    KernelFlag(&'static str),
    /// A flag about processes, without one.
    #[error("{0} needs a process: add -p PID (without it, the kernel's own allocations are traced)")]
    ProcessFlag(&'static str),
    /// Both a process and a program.
    #[error("-p traces a running process, -c and `-- PROGRAM` start one: use only one of them")]
    TwoTargets,
    /// Two programs.
    #[error("-c COMMAND and `-- PROGRAM` both start a program: use only one of them")]
    TwoPrograms,
    /// No words in a command.
    #[error("-c names no program: give it with its arguments, for example -c 'ls -l'")]
    EmptyCommand,
    /// A command that has no end.
    #[error(
        "-c `{0}` cannot be split into words: close the quote that is open, or leave out the backslash at its end"
    )]
    CommandWords(String),
    /// Not a process id.
    #[error("`{0}` is not a process id: give a number, for example -p $(pidof -s {0})")]
    NotAPid(String),
    /// A process id that no process has.
    #[error("{0} is not a process id: they start at 1")]
    PidRange(u64),
    /// The same process more than once.
    #[error("process {0} is given twice: give each once")]
    SamePid(u32),
    /// More processes than there can be.
    #[error("{count} processes are too many: at most {most} can be traced at once")]
    TooManyPids {
        /// How many were given.
        count: usize,
        /// How many there can be.
        most: u32,
    },
    /// Not an amount of memory, or not a duration.
    #[error("invalid value `{text}` for {flag}: {error}; for example, {example}")]
    Unit {
        /// The flag or argument.
        flag: &'static str,
        /// As it was written.
        text: String,
        /// What is wrong with it.
        error: UnitError,
        /// A value that is right.
        example: &'static str,
    },
    /// Not a time that can pass.
    #[error("invalid value `{1}` for {0}: it must be above 0; for example, 5, 500ms or 1m30s")]
    NoTime(&'static str, String),
    /// Not a count.
    #[error("invalid value `{0}` for COUNT: expected a number above 0; leave it out to report until Ctrl-C")]
    Count(String),
    /// Not a sampling rate.
    #[error(
        "invalid value `{0}` for -s: expected a number from 1 to 16777216; -s 100 records one of 100 allocations"
    )]
    SampleRate(String),
    /// Not a sampling distance.
    #[error("invalid value `{0}` for --sample-bytes: it must be from 1 B to 1 TiB; for example, 512K")]
    SampleBytes(String),
    /// Not a limit on what tracing costs.
    #[error(
        "invalid value `{0}` for --max-overhead: expected a percentage of one CPU from 0.001 to 100000; for example, 10"
    )]
    MaxOverhead(String),
    /// Calls are to be counted, where the rate must be able to change.
    #[error(
        "-s samples by calls, and --max-overhead by bytes: leave out -s, or use --sample-bytes SIZE for the distance to begin \
         with"
    )]
    OverheadByCalls,
    /// No size is between the limits.
    #[error("no allocation is at least {min} (-z) and at most {max} (-Z) bytes large: raise -Z or lower -z")]
    NoSize {
        /// The least that was asked for.
        min: u64,
        /// The most.
        max: u64,
    },
    /// Not an amount of memory for tables.
    #[error("invalid value `{0}` for --table-memory: it must be from 64 KiB to 256 MiB; for example, 32M")]
    TableMemory(String),
    /// Not a description of a function.
    #[error("--alloc: {0}")]
    Alloc(GivenError),
    /// The same function twice.
    #[error("--alloc: `{0}` is described twice: give each function once")]
    AllocTwice(String),
    /// An empty name.
    #[error("{0} needs a name: leave it out to look everywhere")]
    EmptyName(&'static str),
    /// Ages are asked for where none are read.
    #[error("--older needs the ages of blocks, which --combined-only does not read: use only one of them")]
    AgesNotRead,
    /// Blocks are asked for where none are read.
    #[error("--show-allocs lists the block table, which {0} does not read: use only one of them")]
    BlocksNotRead(&'static str),
    /// Blocks are asked for where there is no place for them.
    #[error(
        "--format {0} cannot list single blocks: leave out --show-allocs, or use text, json, bcc or libbpf"
    )]
    NoPlaceForBlocks(&'static str),
    /// Calls are to be told where there is no place for them.
    #[error("--format {0} cannot list single calls: leave out --trace, or use text, bcc or libbpf")]
    NoPlaceForCalls(&'static str),
    /// Not a depth.
    #[error(
        "invalid value `{0}` for --perf-max-stack-depth: expected a number above 0; leave it out to keep all frames"
    )]
    Depth(String),
    /// A file whose name says nothing of its format.
    #[error("cannot tell the format from the name `{0}`: add --format, or use one of the endings {1}")]
    UnknownEnding(String, String),
    /// Permission to replace nothing.
    #[error("-f has no file to overwrite: add --output FILE, or leave it out")]
    NothingToReplace,
    /// Something about a recording, without one.
    #[error("{0} needs a recording: add --record FILE, or leave it out")]
    NothingToRecord(&'static str),
    /// A recording that cannot be one.
    #[error("--record needs a file that can be written to more than once: `{0}` is not one")]
    RecordToStdout(String),
    /// Two things in one file.
    #[error("--output and --record name the same file `{0}`: give each its own")]
    SameFile(String),
    /// Not a size of a recording.
    #[error("invalid value `{0}` for --record-limit: it must be at least 64 KiB; for example, 256M")]
    RecordLimit(String),
    /// A copy is asked for, and something else.
    #[error("{0} shows reports, and --record copies them: use only one of them")]
    CopiedOnly(&'static str),
    /// Reports that are not shown, or without names, are to be held against something.
    #[error(
        "--fail-on, suppressions and baselines need reports with their names: they cannot be used with {0}"
    )]
    NotHeld(&'static str),
    /// Growth of what is growth.
    #[error("a difference is growth already: use --measure outstanding or allocated, or leave it out")]
    GrowthOfGrowth,
    /// A form that comparisons do not have.
    #[error("cannot write {1} as {0}: use --format {2}")]
    NoSuchForm(String, &'static str, &'static str),
    /// What a flame graph shows, without one.
    #[error(
        "{flag} applies to formats with one number for each stack (folded, svg, speedscope, html), not to {format}: leave it \
         out, or use another --format"
    )]
    NoQuantity {
        /// What was asked for.
        flag: &'static str,
        /// The format.
        format: &'static str,
    },
    /// Nobody to ask for debug files.
    #[error(
        "--debuginfod needs a server: set DEBUGINFOD_URLS, for example \
         DEBUGINFOD_URLS=https://debuginfod.elfutils.org (sudo takes it as sudo DEBUGINFOD_URLS=… memleak …)"
    )]
    NoDebuginfodServer,
    /// A format where nothing is written.
    #[error(
        "--live shows reports on the terminal and writes none: leave out --format, or add --output FILE for the last one"
    )]
    LiveFormat,
    /// Two things on one terminal.
    #[error("-t writes a line for each call, and --live draws on the same terminal: use only one of them")]
    LiveCalls,
    /// A size that must not be 0.
    #[error("{0} must be above 0")]
    Zero(&'static str),
    /// A trace without reports is to be held against something.
    #[error(
        "--fail-on, suppressions and baselines need reports, and -t makes none in this format: use only one of them"
    )]
    NoReports,
    /// What the trace is to be held against makes no sense.
    #[error(transparent)]
    Gate(#[from] SettingsError),
    /// What is to be exported makes no sense.
    #[error(transparent)]
    Export(#[from] export::SettingsError),
}

impl ConfigError {
    /// Whether it is about things that do not go together, each of which can make sense by itself.
    pub(crate) fn is_of_several(&self) -> bool {
        matches!(
            self,
            Self::KernelFlag(_)
                | Self::ProcessFlag(_)
                | Self::TwoTargets
                | Self::TwoPrograms
                | Self::OverheadByCalls
                | Self::NoSize { .. }
                | Self::AgesNotRead
                | Self::BlocksNotRead(_)
                | Self::NoPlaceForBlocks(_)
                | Self::NoPlaceForCalls(_)
                | Self::NothingToReplace
                | Self::NothingToRecord(_)
                | Self::SameFile(_)
                | Self::CopiedOnly(_)
                | Self::NoQuantity { .. }
                | Self::NoSuchForm(..)
                | Self::NotHeld(_)
                | Self::LiveFormat
                | Self::LiveCalls
                | Self::NoReports
                | Self::Gate(SettingsError::NoCondition(_))
                | Self::Export(
                    export::SettingsError::NothingPushed(_)
                        | export::SettingsError::NothingServed(_)
                        | export::SettingsError::NoReports
                )
        )
    }
}

/// A process id.
pub(crate) fn parse_pid(text: &str) -> Result<u32, ConfigError> {
    let number: u64 = text.parse().map_err(|_| ConfigError::NotAPid(text.to_owned()))?;
    // The kernel's pid_t is signed.
    match u32::try_from(number) {
        Ok(pid) if (1..=u32::MAX / 2).contains(&pid) => Ok(pid),
        _ => Err(ConfigError::PidRange(number)),
    }
}

/// The processes to trace.
pub(crate) fn parse_pids(texts: &[String]) -> Result<Vec<u32>, ConfigError> {
    let mut pids = Vec::with_capacity(texts.len());
    for text in texts {
        let pid = parse_pid(text)?;
        if pids.contains(&pid) {
            return Err(ConfigError::SamePid(pid));
        }
        pids.push(pid);
    }
    let most = Capacity::MAX_PROCESSES;
    match u32::try_from(pids.len()) {
        Ok(count) if count <= most => Ok(pids),
        _ => Err(ConfigError::TooManyPids {
            count: pids.len(),
            most,
        }),
    }
}

/// The words of a command.
pub(crate) fn parse_command(text: &OsStr) -> Result<Vec<OsString>, ConfigError> {
    let words = shlex::bytes::split(text.as_bytes());
    let words = words.ok_or_else(|| ConfigError::CommandWords(text.to_string_lossy().into_owned()))?;
    match words.is_empty() {
        true => Err(ConfigError::EmptyCommand),
        false => Ok(words.into_iter().map(OsString::from_vec).collect()),
    }
}

/// An amount of memory.
fn parse_size(flag: &'static str, text: &str, example: &'static str) -> Result<u64, ConfigError> {
    units::parse_bytes(text).map_err(|error| ConfigError::Unit {
        flag,
        text: text.to_owned(),
        error,
        example,
    })
}

/// A duration; a number alone is in `bare`.
fn parse_time(flag: &'static str, text: &str, bare: TimeUnit) -> Result<Duration, ConfigError> {
    units::parse_duration(text, bare).map_err(|error| ConfigError::Unit {
        flag,
        text: text.to_owned(),
        error,
        example: "5, 500ms or 1m30s",
    })
}

/// A duration above 0, such as that between reports; a number alone is in seconds.
pub(crate) fn parse_period(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let period = parse_time(flag, text, TimeUnit::SECOND)?;
    Some(period)
        .filter(|period| !period.is_zero())
        .ok_or_else(|| ConfigError::NoTime(flag, text.to_owned()))
}

/// The age below which blocks are hidden; a number alone is in milliseconds.
pub(crate) fn parse_older(text: &str) -> Result<Duration, ConfigError> {
    parse_time("--older", text, TimeUnit::MILLISECOND)
}

/// The most frames of a stack.
pub(crate) fn parse_depth(text: &str) -> Result<NonZeroUsize, ConfigError> {
    text.parse().map_err(|_| ConfigError::Depth(text.to_owned()))
}

/// The number of reports.
pub(crate) fn parse_count(text: &str) -> Result<NonZeroU64, ConfigError> {
    text.parse().map_err(|_| ConfigError::Count(text.to_owned()))
}

/// The most bytes of a recording.
pub(crate) fn parse_record_limit(text: &str) -> Result<u64, ConfigError> {
    Some(parse_size("--record-limit", text, "256M")?)
        .filter(|&limit| limit >= recording::Settings::LEAST_LIMIT)
        .ok_or_else(|| ConfigError::RecordLimit(text.to_owned()))
}

/// Memory for tables.
pub(crate) fn parse_table_memory(text: &str) -> Result<u32, ConfigError> {
    u32::try_from(parse_size("--table-memory", text, "32M")?)
        .ok()
        .filter(|bytes| (Config::LEAST_TABLE_MEMORY..=Config::MOST_TABLE_MEMORY).contains(bytes))
        .ok_or_else(|| ConfigError::TableMemory(text.to_owned()))
}

/// Which allocations are recorded: one of so many calls, or one for so many bytes.
pub(crate) fn parse_sampling(calls: Option<&str>, bytes: Option<&str>) -> Result<Sampling, ConfigError> {
    if let Some(text) = bytes {
        return Some(parse_size("--sample-bytes", text, "512K")?)
            .filter(|bytes| (1..=Sampling::MOST_BYTES).contains(bytes))
            .map(Sampling::Bytes)
            .ok_or_else(|| ConfigError::SampleBytes(text.to_owned()));
    }
    let Some(text) = calls else {
        return Ok(Sampling::All);
    };
    match text.parse() {
        Ok(1) => Ok(Sampling::All),
        Ok(calls @ 2..=Sampling::MOST_CALLS) => Ok(Sampling::Calls(calls)),
        _ => Err(ConfigError::SampleRate(text.to_owned())),
    }
}

/// What tracing may cost.
pub(crate) fn parse_max_overhead(text: &str) -> Result<MaxOverhead, ConfigError> {
    units::parse_percentage(text, 0.001..=100_000.0)
        .map(|thousandths| MaxOverhead { thousandths })
        .ok_or_else(|| ConfigError::MaxOverhead(text.to_owned()))
}

/// Sizes that are recorded.
pub(crate) fn parse_sizes(min: Option<&str>, max: Option<&str>) -> Result<Option<SizeFilter>, ConfigError> {
    let (min, max) = (
        min.map(|text| parse_size("-z", text, "64 or 4K")).transpose()?,
        max.map(|text| parse_size("-Z", text, "64 or 4K")).transpose()?,
    );
    if min.is_none() && max.is_none() {
        return Ok(None);
    }
    let (min, max) = (min.unwrap_or(0), max.unwrap_or(u64::MAX));
    if min > max {
        return Err(ConfigError::NoSize { min, max });
    }
    Ok(Some(SizeFilter { min, max }))
}

/// A capacity.
pub(crate) fn non_zero(name: &'static str, value: u32) -> Result<u32, ConfigError> {
    if value == 0 {
        Err(ConfigError::Zero(name))
    } else {
        Ok(value)
    }
}
