//! Commands that do not trace, except [`doctor`], which tries it, and [`why`], which does so where it must.
//! (The trace that [`mcp`] answers questions about is run by `main`.)

pub mod doctor;
pub mod inspect;
pub mod mcp;
pub mod replay;
pub mod targets;
pub mod top;
pub mod verdict;
pub mod why;

use std::time::Duration;

/// A time in JSON.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Output format of commands that make no reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One object.
    Json,
}
