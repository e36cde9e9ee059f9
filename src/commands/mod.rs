//! Commands that do not trace, except [`doctor`], which tries it. (The trace that [`mcp`] answers questions
//! about is run by `main`.)

pub mod doctor;
pub mod inspect;
pub mod mcp;
pub mod replay;
pub mod targets;
pub mod top;
pub mod verdict;
pub mod why;

/// Output format of commands that make no reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One object.
    Json,
}
