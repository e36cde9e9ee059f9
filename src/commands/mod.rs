//! Commands that trace nothing, or only to find out whether tracing works. (A trace that [`mcp`] answers about is run by `main`.)

pub mod doctor;
pub mod inspect;
pub mod mcp;
pub mod replay;
pub mod targets;
pub mod top;
pub mod verdict;

/// Form of the output of commands that make no reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One object.
    Json,
}
