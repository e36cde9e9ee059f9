//! `memleak doctor`: determines before a trace whether it can work, and how complete its stacks will be.
//!
//! Loading and attaching is tried in this process itself. The process to examine is only read, unless `cost`
//! traces it briefly. Each finding is one line with its remedy; the verdict sums them up.

mod attach;
mod cost;
mod json;
mod modules;
mod process;
mod report;
mod runtime;
mod system;
mod text;

use std::io::Write;
use std::path::PathBuf;

use super::{Format, targets};
use crate::process::select::Selectors;
use crate::sinks::output::{self, Look};
pub use modules::{ModuleFinding, TableFinding};
pub use process::ProcessFindings;

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

/// Destination of a report on the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    Standard,
    File(PathBuf),
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// Something will be missing from reports.
    Warning,
    /// No trace is possible.
    Fatal,
}

impl Level {
    /// Stable name, in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fatal => "fatal",
        }
    }
}

/// A fact about the machine or the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    /// Stable name of its subject.
    pub topic: &'static str,
    pub text: String,
    pub remedy: Option<String>,
}

impl Finding {
    fn new(level: Level, topic: &'static str, text: impl Into<String>) -> Self {
        Self {
            level,
            topic,
            text: text.into(),
            remedy: None,
        }
    }

    fn fine(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Fine, topic, text)
    }

    fn note(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Note, topic, text)
    }

    fn warning(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Warning, topic, text)
    }

    fn fatal(topic: &'static str, text: impl Into<String>) -> Self {
        Self::new(Level::Fatal, topic, text)
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// All findings.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Findings about the machine and this process's rights.
    pub system: Vec<Finding>,
    /// Findings about the process to examine.
    pub process: Option<ProcessFindings>,
}

/// Summary of all findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The worst level of any finding.
    pub level: Level,
    /// Summary in one line.
    pub text: String,
}

impl Diagnosis {
    /// All findings, including those about modules and probes.
    fn findings(&self) -> impl Iterator<Item = Finding> + '_ {
        let process = self.process.iter().flat_map(ProcessFindings::findings);
        self.system.iter().cloned().chain(process)
    }

    pub fn verdict(&self) -> Verdict {
        let level = self
            .findings()
            .map(|finding| finding.level)
            .max()
            .unwrap_or(Level::Fine);
        let texts = |level| {
            let of_level = self.findings().filter(move |finding| finding.level == level);
            of_level.map(|finding| finding.text)
        };
        let subject = match &self.process {
            Some(_) => "this process",
            None => "this machine",
        };
        let text = match level {
            Level::Fatal => format!(
                "cannot trace: {}",
                texts(Level::Fatal).collect::<Vec<_>>().join("; ")
            ),
            Level::Warning => {
                let mut warnings = texts(Level::Warning);
                let first = warnings.next().unwrap_or_default();
                let more = match warnings.count() {
                    0 => String::new(),
                    more => format!("; and {more} more above"),
                };
                format!("{subject} can be traced, but: {first}{more}")
            }
            Level::Fine | Level::Note => match &self.process {
                Some(_) => "this process can be traced, and its stacks should be complete".to_owned(),
                None => "processes can be traced here; -p PID examines one of them".to_owned(),
            },
        };
        Verdict { level, text }
    }
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
        return Ok(diagnosis.verdict().level < Level::Fatal);
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
    Ok(diagnosis.verdict().level < Level::Fatal)
}
