//! Validated settings. Made from the command line in one place; whatever exists makes sense.

use std::num::NonZeroU64;
use std::time::Duration;

use thiserror::Error;

use crate::bpf::{AttachPath, Walk};
use crate::cli::{AttachArg, FormatArg, TraceArgs, UnwindArg};
use crate::report::Format;

/// A trace that can be attempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The process.
    pub pid: u32,
    /// How stacks are walked.
    pub walk: Walk,
    /// Form of the reports.
    pub format: Format,
    /// Stacks in a text report.
    pub top: usize,
    /// Blocks that can be live at once.
    pub max_blocks: u32,
    /// Distinct stacks that can be stored.
    pub max_stacks: u32,
    /// Ways to attach, to be tried in this order.
    pub attach: Vec<AttachPath>,
    /// Time between reports.
    pub interval: Duration,
    /// Reports to make, or as many as there is time for.
    pub count: Option<NonZeroU64>,
}

/// The command line does not say what can be done.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Nothing to trace.
    #[error("nothing to trace: give the process with -p PID")]
    NoTarget,
    /// Both a process and a program.
    #[error("-p traces a running process, `-- PROGRAM` would start one: give only one of them")]
    TwoTargets,
    /// A program to start.
    #[error("starting a program is not supported yet: start it, then trace it with -p PID")]
    Program,
    /// Not a process id.
    #[error("`{0}` is not a process id: give a number, for example -p $(pidof -s {0})")]
    NotAPid(String),
    /// A process id that no process has.
    #[error("{0} is not a process id: they start at 1")]
    PidRange(u64),
    /// Not an interval.
    #[error("interval `{0}` is not a number of seconds above 0")]
    Interval(String),
    /// Not a count.
    #[error("count `{0}` is not a number above 0: leave it out to report until Ctrl-C")]
    Count(String),
    /// A size that must not be 0.
    #[error("{0} must be above 0")]
    Zero(&'static str),
}

impl TryFrom<TraceArgs> for Config {
    type Error = ConfigError;

    fn try_from(args: TraceArgs) -> Result<Self, ConfigError> {
        let pid = match (args.pid, args.program.is_empty()) {
            (Some(_), false) => return Err(ConfigError::TwoTargets),
            (None, false) => return Err(ConfigError::Program),
            (None, true) => return Err(ConfigError::NoTarget),
            (Some(pid), true) => parse_pid(&pid)?,
        };
        Ok(Self {
            pid,
            walk: match args.unwind {
                UnwindArg::Dwarf => Walk::Dwarf,
                UnwindArg::Fp => Walk::Fp,
                UnwindArg::Off => Walk::Off,
            },
            format: match args.format {
                FormatArg::Text => Format::Text,
                FormatArg::Json => Format::Json,
            },
            top: args.top,
            max_blocks: non_zero("--max-blocks", args.max_blocks)?,
            max_stacks: non_zero("--stack-storage-size", args.stack_storage_size)?,
            attach: match args.attach {
                None => AttachPath::ALL.to_vec(),
                Some(AttachArg::Session) => vec![AttachPath::Session],
                Some(AttachArg::Multi) => vec![AttachPath::Multi],
                Some(AttachArg::Perf) => vec![AttachPath::Perf],
            },
            interval: parse_interval(&args.interval)?,
            count: args.count.as_deref().map(parse_count).transpose()?,
        })
    }
}

fn parse_pid(text: &str) -> Result<u32, ConfigError> {
    let number: u64 = text.parse().map_err(|_| ConfigError::NotAPid(text.to_owned()))?;
    // The kernel's pid_t is signed.
    match u32::try_from(number) {
        Ok(pid) if (1..=u32::MAX / 2).contains(&pid) => Ok(pid),
        _ => Err(ConfigError::PidRange(number)),
    }
}

fn parse_interval(text: &str) -> Result<Duration, ConfigError> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|interval| !interval.is_zero()).ok_or_else(|| ConfigError::Interval(text.to_owned()))
}

fn parse_count(text: &str) -> Result<NonZeroU64, ConfigError> {
    text.parse().map_err(|_| ConfigError::Count(text.to_owned()))
}

fn non_zero(name: &'static str, value: u32) -> Result<u32, ConfigError> {
    if value == 0 { Err(ConfigError::Zero(name)) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn config(arguments: &str) -> Result<Config, ConfigError> {
        let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
        Cli::try_parse_from(arguments).expect("the command line parses").trace.try_into()
    }

    /// The two positional arguments are seconds between reports and their number.
    #[test]
    fn interval_and_count_are_read() {
        let config = config("-p 17 0.25 3").expect("it makes sense");
        assert_eq!(config.interval, Duration::from_millis(250));
        assert_eq!(config.count, NonZeroU64::new(3));
        assert_eq!((config.pid, config.walk, config.top), (17, Walk::Dwarf, 10));
    }

    /// Every command line that makes no sense is refused with its own reason.
    #[test]
    fn nonsense_is_refused() {
        let bad = |text: &str| text.to_owned();
        for (arguments, error) in [
            ("", ConfigError::NoTarget),
            ("-p 1 -- ls -l", ConfigError::TwoTargets),
            ("-- ls", ConfigError::Program),
            ("-p redis-server", ConfigError::NotAPid(bad("redis-server"))),
            ("-p 0", ConfigError::PidRange(0)),
            ("-p 4294967296", ConfigError::PidRange(1 << 32)),
            ("-p 2147483648", ConfigError::PidRange(1 << 31)),
            ("-p 1 0", ConfigError::Interval(bad("0"))),
            ("-p 1 nan", ConfigError::Interval(bad("nan"))),
            ("-p 1 1e99", ConfigError::Interval(bad("1e99"))),
            ("-p 1 5 0", ConfigError::Count(bad("0"))),
            ("-p 1 5 x", ConfigError::Count(bad("x"))),
            ("-p 1 --max-blocks 0", ConfigError::Zero("--max-blocks")),
        ] {
            assert_eq!(config(arguments), Err(error), "{arguments}");
        }
    }
}
