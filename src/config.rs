//! Validated settings: whatever exists makes sense. How they are written on the command line is `cli`.

use std::num::NonZeroU64;
use std::time::Duration;

use thiserror::Error;

use crate::bpf::{AttachPath, Walk};
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

/// A process id.
pub(crate) fn parse_pid(text: &str) -> Result<u32, ConfigError> {
    let number: u64 = text.parse().map_err(|_| ConfigError::NotAPid(text.to_owned()))?;
    // The kernel's pid_t is signed.
    match u32::try_from(number) {
        Ok(pid) if (1..=u32::MAX / 2).contains(&pid) => Ok(pid),
        _ => Err(ConfigError::PidRange(number)),
    }
}

/// The time between reports.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, ConfigError> {
    let seconds = text
        .parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|interval| !interval.is_zero())
        .ok_or_else(|| ConfigError::Interval(text.to_owned()))
}

/// The number of reports.
pub(crate) fn parse_count(text: &str) -> Result<NonZeroU64, ConfigError> {
    text.parse().map_err(|_| ConfigError::Count(text.to_owned()))
}

/// A capacity.
pub(crate) fn non_zero(name: &'static str, value: u32) -> Result<u32, ConfigError> {
    if value == 0 {
        Err(ConfigError::Zero(name))
    } else {
        Ok(value)
    }
}
