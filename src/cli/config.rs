//! Validated settings of a command line, and its errors.

use std::ffi::{OsStr, OsString};
use std::num::{NonZeroU64, NonZeroUsize};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use leak_report::model::Sampling;
use leak_report::units::{self, TimeUnit, UnitError};
use thiserror::Error;

use crate::allocator::given::GivenError;
use crate::base::condition::ConditionError;
use crate::bpf::{Capacity, SizeFilter};
use crate::commands::targets::TargetOptions;
use crate::session::{MaxOverhead, TraceConfig};
use crate::sinks::gate::SettingsError;
use crate::sinks::{SinkConfig, export, recording};

/// Validated settings of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub trace: TraceConfig,
    /// Processes to look for before the trace.
    pub select: Option<TargetOptions>,
    pub sinks: SinkConfig,
}

/// Error in the meaning of a command line that parses.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    #[error(
        "{0} applies to the kernel's own allocations, which are traced only without -p: use only one of them"
    )]
    KernelFlag(&'static str),
    #[error("{0} needs a process: add -p PID (without it, the kernel's own allocations are traced)")]
    ProcessFlag(&'static str),
    #[error(
        "-p, --systemd-unit, --cgroup, --container and --user are for processes that run, -c and `-- PROGRAM` start one: use only \
         one of them"
    )]
    TwoTargets,
    #[error("-c COMMAND and `-- PROGRAM` both start a program: use only one of them")]
    TwoPrograms,
    #[error("-c names no program: give it with its arguments, for example -c 'ls -l'")]
    EmptyCommand,
    #[error(
        "-c `{0}` cannot be split into words: close the quote that is open, or leave out the backslash at its end"
    )]
    CommandWords(String),
    #[error("{0} needs a value: leave out the comma or the flag, or name what to trace")]
    EmptyTarget(&'static str),
    #[error(
        "{0} needs a process: select one with -p PID or -p NAME, or with --systemd-unit, --cgroup, --container or --user"
    )]
    NoProcess(&'static str),
    #[error("--report is about the kernel, and names no process: leave out -p, or --report")]
    ReportOfProcess,
    #[error("`{0}` is not the name of a unit: give one as systemctl shows it, for example nginx.service")]
    NotAUnit(String),
    #[error(
        "--wait waits for processes that are not given by pid: give a name with -p, or --systemd-unit, --cgroup, --container or \
         --user, or leave it out"
    )]
    NothingToWaitFor,
    #[error(transparent)]
    Condition(#[from] ConditionError),
    #[error(
        "--start-when is for running processes, and memleak starts this one: leave it out, or use --report-when to choose when \
         reports are made"
    )]
    StartWhenStarted,
    #[error(
        "--report-when `{0}` is about processes, and the kernel's own allocations are traced: use outstanding or growth, or add \
         -p PID"
    )]
    NotOfTheKernel(String),
    #[error("--report-when `{0}` counts blocks, and --faults traces none: use rss, anon or cgroup")]
    NotOfFaults(String),
    #[error("{0} decides itself when reports are made, so --report-when cannot apply: use only one of them")]
    ReportsOtherwise(&'static str),
    #[error("{0} is not a process id: ids are numbers from 1 to 2147483647")]
    PidRange(u64),
    #[error("process {0} is given twice: give each once")]
    SamePid(u32),
    #[error("{count} processes are too many: at most {max} can be traced at once")]
    TooManyPids { count: usize, max: u32 },
    #[error(
        "at most {} processes can be traced at once: give --max-processes no more than that",
        Capacity::MAX_PROCESSES
    )]
    TooManyProcesses,
    #[error("invalid value `{text}` for {flag}: {error}; for example, {example}")]
    Unit {
        flag: &'static str,
        text: String,
        error: UnitError,
        example: &'static str,
    },
    #[error("invalid value `{1}` for {0}: it must be above 0; for example, 5, 500ms or 1m30s")]
    NoTime(&'static str, String),
    #[error(
        "--window: growth needs at least 10 samples, which take {0} s with this INTERVAL: raise --window, or shorten INTERVAL"
    )]
    Window(String),
    #[error("invalid value `{0}` for COUNT: expected a number above 0; leave it out to report until Ctrl-C")]
    Count(String),
    #[error(
        "invalid value `{0}` for -s: expected a number from 1 to 16777216; -s 100 records one of 100 allocations"
    )]
    SampleRate(String),
    #[error("invalid value `{0}` for --sample-bytes: it must be from 1 B to 1 TiB; for example, 512K")]
    SampleBytes(String),
    #[error(
        "invalid value `{0}` for --max-overhead: expected a percentage of one CPU from 0.001 to 100000; for example, 10"
    )]
    MaxOverhead(String),
    #[error(
        "-s samples by calls, and --max-overhead by bytes: leave out -s, or use --sample-bytes SIZE for the smallest \
         sampling interval"
    )]
    OverheadByCalls,
    #[error(
        "--source usdt: the process itself selects the blocks that it announces, so {0} cannot apply: leave it out, or use \
         --source uprobe"
    )]
    ChosenByProcess(&'static str),
    #[error(
        "--preload is for a program that memleak starts, with -c COMMAND or behind --; a running process can be traced \
         without it"
    )]
    PreloadWithoutProgram,
    #[error("--preload traces by USDT probes (--source usdt): leave out --source uprobe")]
    PreloadByProbes,
    #[error("no allocation is at least {min} (-z) and at most {max} (-Z) bytes large: raise -Z or lower -z")]
    NoSize { min: u64, max: u64 },
    #[error("invalid value `{0}` for --table-memory: it must be from 64 KiB to 256 MiB; for example, 32M")]
    TableMemory(String),
    #[error("--alloc: {0}")]
    Alloc(GivenError),
    #[error("--alloc: `{0}` is described twice: give each function once")]
    AllocTwice(String),
    #[error(
        "--alloc is given {count} times: at most {max} functions can be described in addition to the known ones"
    )]
    TooManyAllocs { count: usize, max: usize },
    #[error("{0} needs a name: give one, or leave the flag out")]
    EmptyName(&'static str),
    #[error(
        "--older needs the ages of blocks, which are not read with --combined-only: use only one of them"
    )]
    AgesNotRead,
    #[error("--show-allocs lists single blocks, which are not available with {0}: use only one of them")]
    BlocksNotRead(&'static str),
    #[error("--classes examines single blocks, which are not available with {0}: use only one of them")]
    NoClasses(&'static str),
    #[error(
        "what blocks pin is found by single blocks, which are not available with {0}: leave out --pinned, --sort pinned \
         and --measure pinned, or {0}"
    )]
    NoPinned(&'static str),
    #[error("--verdict judges single blocks, which are not available with {0}: use only one of them")]
    NothingToJudge(&'static str),
    #[error("--verdict: `last` and `each` exclude each other: use only one of them")]
    LastAndEach,
    #[error("--fail-on '{0}' needs a verdict: add --verdict")]
    NoVerdict(String),
    #[error(
        "--fail-on '{0}' needs a trace: leave it out, or use `memleak --verdict -p PID`; `memleak verdict` knows only \
         outstanding, blocks, definitely_lost and indirectly_lost"
    )]
    OnlyOfTraces(String),
    #[error(
        "--fail-on '{0}' is about why memory grows: use it with `memleak why`, or with `memleak report` on a file that `memleak why \
         --record` has written"
    )]
    OnlyOfDiagnoses(String),
    #[error("--fail-on '{0}' needs a trace: leave it out; `memleak why` knows only cause=KIND and grows")]
    NotOfDiagnoses(String),
    #[error("--measure definitely-lost needs a verdict: add --verdict")]
    NotJudged,
    #[error(
        "the peak is tracked only for blocks of processes, not for mappings, pages or the kernel: leave out --sort peak or \
         --measure peak"
    )]
    NoPeak,
    #[error(
        "--format {0} cannot list single blocks: leave out --show-allocs, or use text, json, bcc or libbpf"
    )]
    NoPlaceForBlocks(&'static str),
    #[error("--format {0} cannot list single calls: leave out --trace, or use text, bcc or libbpf")]
    NoPlaceForCalls(&'static str),
    #[error(
        "invalid value `{0}` for --perf-max-stack-depth: expected a number above 0; leave it out to keep all frames"
    )]
    Depth(String),
    #[error("cannot tell the format from the name `{0}`: add --format, or use one of the extensions {1}")]
    UnknownEnding(String, String),
    #[error("-f has no file to overwrite: add --output FILE, or leave it out")]
    NothingToReplace,
    #[error("{0} needs a recording: add --record FILE, or leave it out")]
    NothingToRecord(&'static str),
    #[error("--record needs a file that can be written to more than once: `{0}` is not one")]
    RecordToStdout(String),
    #[error("--output and --record name the same file `{0}`: give each its own")]
    SameFile(String),
    #[error("invalid value `{0}` for --record-limit: it must be at least 64 KiB; for example, 256M")]
    RecordLimit(String),
    #[error("--record only copies reports, so {0} cannot apply: use only one of them")]
    CopiedOnly(&'static str),
    #[error("--fail-on, suppressions and baselines need function names: they cannot be used with {0}")]
    GateWithoutNames(&'static str),
    #[error("--every is for a trace: leave it out, or give the id of a process instead of files")]
    IntervalOfFiles,
    #[error(
        "--measure growth: a difference already shows growth: use --measure outstanding or allocated, or leave it out"
    )]
    GrowthOfGrowth,
    #[error("cannot write {1} as {0}: use --format {2}")]
    NoSuchForm(String, &'static str, &'static str),
    #[error(
        "{flag} applies to formats with one number for each stack (folded, svg, speedscope, html), not to {format}: leave it \
         out, or use another --format"
    )]
    NoQuantity {
        flag: &'static str,
        format: &'static str,
    },
    #[error("--source-lines applies to text and html, not to {0}: leave it out, or use another --format")]
    NoSourceLines(&'static str),
    #[error(
        "--debuginfod needs a server: set DEBUGINFOD_URLS, for example \
         DEBUGINFOD_URLS=https://debuginfod.elfutils.org (sudo takes it as sudo DEBUGINFOD_URLS=… memleak …)"
    )]
    NoDebuginfodServer,
    /// Flag or subcommand of a part that this build lacks.
    #[error(
        "{flag}: this memleak was built without {part}: use one that was built with the cargo feature `{feature}`, which is \
         on by default"
    )]
    NotBuilt {
        /// The flag or subcommand.
        flag: &'static str,
        /// The part of memleak that it needs.
        part: &'static str,
        /// The cargo feature of that part.
        feature: &'static str,
    },
    /// Format given with `--live`, which writes nothing.
    #[error(
        "--live shows reports on the terminal and writes none: leave out --format, or add --output FILE for the last one"
    )]
    LiveFormat,
    #[error("-t writes a line for each call, and --live draws on the same terminal: use only one of them")]
    LiveCalls,
    #[error("{0} must be above 0")]
    Zero(&'static str),
    #[error(
        "--fail-on, suppressions and baselines need reports, and -t makes none in this format: use only one of them"
    )]
    NoReports,
    #[error(transparent)]
    Gate(#[from] SettingsError),
    #[error(transparent)]
    Export(#[from] export::SettingsError),
}

impl ConfigError {
    /// Error for a flag that needs servers, in a build without the `net` feature.
    pub(crate) const fn without_net(flag: &'static str) -> Self {
        Self::NotBuilt {
            flag,
            part: "network support",
            feature: "net",
        }
    }

    /// True for a conflict of two settings, each of which can be valid by itself.
    pub(crate) fn is_of_several(&self) -> bool {
        matches!(
            self,
            Self::KernelFlag(_)
                | Self::ProcessFlag(_)
                | Self::TwoTargets
                | Self::NothingToWaitFor
                | Self::StartWhenStarted
                | Self::NotOfTheKernel(_)
                | Self::NotOfFaults(_)
                | Self::ReportsOtherwise(_)
                | Self::TwoPrograms
                | Self::OverheadByCalls
                | Self::ChosenByProcess(_)
                | Self::PreloadWithoutProgram
                | Self::PreloadByProbes
                | Self::NoSize { .. }
                | Self::AgesNotRead
                | Self::BlocksNotRead(_)
                | Self::NothingToJudge(_)
                | Self::NoClasses(_)
                | Self::NoVerdict(_)
                | Self::OnlyOfTraces(_)
                | Self::OnlyOfDiagnoses(_)
                | Self::NotOfDiagnoses(_)
                | Self::NotJudged
                | Self::NoPeak
                | Self::LastAndEach
                | Self::NoPlaceForBlocks(_)
                | Self::NoPlaceForCalls(_)
                | Self::NothingToReplace
                | Self::NothingToRecord(_)
                | Self::SameFile(_)
                | Self::CopiedOnly(_)
                | Self::NoQuantity { .. }
                | Self::NoSourceLines(_)
                | Self::NoSuchForm(..)
                | Self::GateWithoutNames(_)
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

/// Parses a process id.
pub(crate) fn parse_pid(text: &str) -> Result<u32, ConfigError> {
    let number: u64 = text.parse().map_err(|_| ConfigError::PidRange(u64::MAX))?;
    // The kernel's pid_t is signed.
    match u32::try_from(number) {
        Ok(pid) if (1..=u32::MAX / 2).contains(&pid) => Ok(pid),
        _ => Err(ConfigError::PidRange(number)),
    }
}

/// Checks the processes to trace: no duplicates, at most `max`.
pub(crate) fn check_pids(given: &[u32], max: u32) -> Result<Vec<u32>, ConfigError> {
    let mut pids = Vec::with_capacity(given.len());
    for &pid in given {
        if pids.contains(&pid) {
            return Err(ConfigError::SamePid(pid));
        }
        pids.push(pid);
    }
    match u32::try_from(pids.len()) {
        Ok(count) if count <= max => Ok(pids),
        _ => Err(ConfigError::TooManyPids {
            count: pids.len(),
            max,
        }),
    }
}

/// Splits a command into words as a shell does.
pub(crate) fn parse_command(text: &OsStr) -> Result<Vec<OsString>, ConfigError> {
    let words = shlex::bytes::split(text.as_bytes());
    let words = words.ok_or_else(|| ConfigError::CommandWords(text.to_string_lossy().into_owned()))?;
    match words.is_empty() {
        true => Err(ConfigError::EmptyCommand),
        false => Ok(words.into_iter().map(OsString::from_vec).collect()),
    }
}

/// Parses an amount of memory, in bytes.
fn parse_size(flag: &'static str, text: &str, example: &'static str) -> Result<u64, ConfigError> {
    units::parse_bytes(text).map_err(|error| ConfigError::Unit {
        flag,
        text: text.to_owned(),
        error,
        example,
    })
}

/// Parses a duration; a number without a unit is in `bare`.
pub(super) fn parse_time(flag: &'static str, text: &str, bare: TimeUnit) -> Result<Duration, ConfigError> {
    units::parse_duration(text, bare).map_err(|error| ConfigError::Unit {
        flag,
        text: text.to_owned(),
        error,
        example: "5, 500ms or 1m30s",
    })
}

/// Parses a duration above 0; a number without a unit is in seconds.
pub(crate) fn parse_period(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let period = parse_time(flag, text, TimeUnit::SECOND)?;
    Some(period)
        .filter(|period| !period.is_zero())
        .ok_or_else(|| ConfigError::NoTime(flag, text.to_owned()))
}

/// Parses the time after which a verdict begins no further pass; a number without a unit is in seconds.
pub(crate) fn parse_verdict_limit(text: &str) -> Result<Duration, ConfigError> {
    parse_time("--verdict-limit", text, TimeUnit::SECOND)
}

/// Parses the age below which blocks are hidden; a number without a unit is in milliseconds.
pub(crate) fn parse_older(text: &str) -> Result<Duration, ConfigError> {
    parse_time("--older", text, TimeUnit::MILLISECOND)
}

/// Parses the maximum number of frames per stack.
pub(crate) fn parse_depth(text: &str) -> Result<NonZeroUsize, ConfigError> {
    text.parse().map_err(|_| ConfigError::Depth(text.to_owned()))
}

/// Parses the number of reports.
pub(crate) fn parse_count(text: &str) -> Result<NonZeroU64, ConfigError> {
    text.parse().map_err(|_| ConfigError::Count(text.to_owned()))
}

/// Parses the maximum size of a recording, in bytes.
pub(crate) fn parse_record_limit(text: &str) -> Result<u64, ConfigError> {
    Some(parse_size("--record-limit", text, "256M")?)
        .filter(|&limit| limit >= recording::Settings::MIN_LIMIT)
        .ok_or_else(|| ConfigError::RecordLimit(text.to_owned()))
}

/// Parses the memory for unwind tables, in bytes.
pub(crate) fn parse_table_memory(text: &str) -> Result<u32, ConfigError> {
    u32::try_from(parse_size("--table-memory", text, "32M")?)
        .ok()
        .filter(|bytes| (TraceConfig::MIN_TABLE_MEMORY..=TraceConfig::MAX_TABLE_MEMORY).contains(bytes))
        .ok_or_else(|| ConfigError::TableMemory(text.to_owned()))
}

/// Parses the sampling interval, in calls or in bytes. An interval of one call is no sampling.
pub(crate) fn parse_sampling(calls: Option<&str>, bytes: Option<&str>) -> Result<Sampling, ConfigError> {
    if let Some(text) = bytes {
        return Some(parse_size("--sample-bytes", text, "512K")?)
            .filter(|bytes| (1..=Sampling::MAX_BYTES).contains(bytes))
            .map(Sampling::Bytes)
            .ok_or_else(|| ConfigError::SampleBytes(text.to_owned()));
    }
    let Some(text) = calls else {
        return Ok(Sampling::All);
    };
    match text.parse() {
        Ok(1) => Ok(Sampling::All),
        Ok(calls @ 2..=Sampling::MAX_CALLS) => Ok(Sampling::Calls(calls)),
        _ => Err(ConfigError::SampleRate(text.to_owned())),
    }
}

/// Parses the limit on what tracing costs, in percent of one CPU.
pub(crate) fn parse_max_overhead(text: &str) -> Result<MaxOverhead, ConfigError> {
    units::parse_percentage(text, 1..=100_000_000)
        .map(MaxOverhead::from_thousandths)
        .ok_or_else(|| ConfigError::MaxOverhead(text.to_owned()))
}

/// Parses the limits on sizes that are recorded; `None` without any.
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

/// Checks that a capacity is above 0.
pub(crate) fn non_zero(name: &'static str, value: u32) -> Result<u32, ConfigError> {
    if value == 0 {
        Err(ConfigError::Zero(name))
    } else {
        Ok(value)
    }
}
