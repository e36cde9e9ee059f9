//! `memleak doctor`: determines before a trace whether it can work, and how complete its stacks will be.
//!
//! Loading and attaching is tried in this process itself. The process to examine is only read, unless `cost`
//! traces it briefly. Each finding is one line with its remedy; the verdict sums them up.

mod attach;
mod cost;
mod diagnosis;
mod finding;
mod json;
mod modules;
mod process;
mod report;
mod runtime;
mod system;
mod text;

use std::io::Write;

use super::{Format, targets};
use crate::process::select::Selectors;
use crate::sinks::output::{self, Look};
pub use diagnosis::{Diagnosis, Summary};
pub use finding::{Finding, Level};
pub use modules::{ModuleFinding, TableFinding};
pub use process::ProcessFindings;
pub use report::Destination;

/// Options of `memleak doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Properties of the process to examine, if any.
    pub process: Option<Selectors>,
    /// True to trace the process briefly, and estimate the cost of each way to trace it.
    pub measure: bool,
    pub format: Format,
    /// Destination of a report on this kernel for an issue, which is written instead of the findings.
    pub report: Option<Destination>,
    /// Names of BPF programs that are broken, for tests.
    pub broken: Vec<String>,
}

/// Examines everything and writes the findings. Returns whether a trace can work.
///
/// # Errors
///
/// Fails if no process, or more than one, matches the selectors, or the output cannot be written.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<bool> {
    let pid = options.process.as_ref().map(targets::find_one).transpose()?;
    let mut system = system::findings();
    system.extend(attach::findings(&options.broken));
    if let Some(destination) = &options.report {
        let diagnosis = Diagnosis {
            system,
            process: None,
        };
        report::write(&diagnosis, &options.broken, destination, out)?;
        return Ok(diagnosis.summary().level < Level::Fatal);
    }
    let mut process = pid.map(process::examine);
    if let Some(process) = process.as_mut().filter(|_| options.measure) {
        process.measure();
    }
    let diagnosis = Diagnosis { system, process };
    match options.format {
        Format::Text => output::paint(Look::of_standard_output(), out, |out| {
            text::render(&diagnosis, out)
        })?,
        Format::Json => json::render(&diagnosis, out)?,
    }
    out.flush()?;
    Ok(diagnosis.summary().level < Level::Fatal)
}
